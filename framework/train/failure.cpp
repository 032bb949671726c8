#include "framework/train/failure.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <set>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/run_folder.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/log.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "failure-rank-";

json::object to_json(const FailedRank& first) {
  return {{"rank", first.rank},
          {"host", first.host},
          {"step", first.step},
          {"activity", first.activity},
          {"why", first.why}};
}

FailedRank first_from_json(const json::value& value) {
  const json::object& o = value.as_object();
  FailedRank first;
  first.rank = json::value_to<int>(o.at("rank"));
  first.host = json::value_to<std::string>(o.at("host"));
  first.step = json::value_to<int64_t>(o.at("step"));
  first.activity = json::value_to<std::string>(o.at("activity"));
  first.why = json::value_to<std::string>(o.at("why"));
  return first;
}

bool is_record(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(kPrefix) && name.ends_with(".json");
}

// Records that cannot be read are passed over with a warning: the others still say something.
void read_into(const fs::path& path, std::vector<FailureRecord>* records) {
  try {
    records->push_back(failure_from_json(json::read_file(path.string())));
  } catch (const std::exception& e) {
    log::warn("{} is no failure record: {}", path.string(), e.what());
  }
}

const FailureRecord* most_telling(const std::vector<FailureRecord>& records,
                                  const std::set<int>& spoke) {
  const auto weight = [&](const FailureRecord& r) {
    if (r.agreed) return 2;
    return r.first.rank >= 0 && spoke.count(r.first.rank) == 0 ? 1 : 0;
  };
  const FailureRecord* best = &records.front();
  for (const FailureRecord& r : records) {
    const int mine = weight(r), theirs = weight(*best);
    if (mine > theirs || (mine == theirs && r.time < best->time)) best = &r;
  }
  return best;
}

}  // namespace

std::string FailedRank::text() const {
  if (rank < 0) return why;
  return fmt::format("rank {} on host {}, {}{}: {}", rank, host,
                     step > 0 ? fmt::format("step {}", step) : "before the first step",
                     activity.empty() ? "" : fmt::format(" ({})", activity), why);
}

json::object failure_to_json(const FailureRecord& r) {
  return {{"rank", r.rank},
          {"world_size", r.world_size},
          {"host", r.host},
          {"pid", r.pid},
          {"job", r.job_id},
          {"step", r.step},
          {"activity", r.activity},
          {"error", r.error},
          {"time", r.time},
          {"exit_code", r.exit_code},
          {"first_failure", to_json(r.first)},
          {"agreed", r.agreed},
          {"last_checkpoint", r.last_checkpoint}};
}

FailureRecord failure_from_json(const json::value& value) {
  const json::object& o = value.as_object();
  FailureRecord r;
  r.rank = json::value_to<int>(o.at("rank"));
  r.world_size = json::value_to<int>(o.at("world_size"));
  r.host = json::value_to<std::string>(o.at("host"));
  r.pid = json::value_to<int64_t>(o.at("pid"));
  r.job_id = json::value_to<std::string>(o.at("job"));
  r.step = json::value_to<int64_t>(o.at("step"));
  r.activity = json::value_to<std::string>(o.at("activity"));
  r.error = json::value_to<std::string>(o.at("error"));
  r.time = json::value_to<std::string>(o.at("time"));
  r.exit_code = json::value_to<int>(o.at("exit_code"));
  r.first = first_from_json(o.at("first_failure"));
  r.agreed = o.at("agreed").as_bool();
  r.last_checkpoint = json::value_to<std::string>(o.at("last_checkpoint"));
  return r;
}

std::string failure_file_name(int rank) {
  return fmt::format("{}{}.json", kPrefix, rank);
}

void write_failure_record(const std::string& folder, const FailureRecord& record) {
  file_system().create_directories(folder);
  write_file_atomically(folder + "/" + failure_file_name(record.rank),
                        json::pretty(failure_to_json(record)));
}

FailureSummary summarize_failures(std::vector<FailureRecord> records) {
  HEDDLE_CHECK(!records.empty(), "no failure record to summarize");
  std::sort(records.begin(), records.end(),
            [](const FailureRecord& a, const FailureRecord& b) { return a.rank < b.rank; });
  FailureSummary summary;
  std::set<int> spoke;
  for (const FailureRecord& r : records) {
    spoke.insert(r.rank);
    summary.world_size = std::max(summary.world_size, r.world_size);
    // Names hold the step with leading zeros.
    summary.last_checkpoint = std::max(summary.last_checkpoint, r.last_checkpoint);
  }
  summary.first = most_telling(records, spoke)->first;
  for (int r = 0; r < summary.world_size; ++r) {
    if (spoke.count(r) == 0) summary.silent.push_back(r);
  }
  summary.records = std::move(records);
  return summary;
}

std::string FailureSummary::text() const {
  std::string text = fmt::format("first failure of {} ranks: {}. ", world_size, first.text());
  if (last_checkpoint.empty()) {
    text += "No checkpoint was written yet: start the run again";
  } else {
    const fs::path run = fs::path(last_checkpoint).parent_path().parent_path();
    text += fmt::format("Last good checkpoint {}; continue with train.resume=auto log.name={}",
                        last_checkpoint, run.filename().string());
  }
  if (!silent.empty()) {
    text += fmt::format(". No record of rank{} {}", silent.size() == 1 ? "" : "s",
                        fmt::join(silent, ", "));
  }
  return text;
}

std::vector<FailureRecord> read_failure_records(const std::string& folder,
                                                const std::string& job_id) {
  std::vector<FailureRecord> records;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_record(entry.path())) read_into(entry.path(), &records);
  }
  if (!job_id.empty()) {
    std::erase_if(records, [&](const FailureRecord& r) { return r.job_id != job_id; });
  }
  return records;
}

void write_failure_summary(const std::string& folder, const FailureSummary& summary) {
  json::array records;
  for (const FailureRecord& r : summary.records) records.push_back(failure_to_json(r));
  write_file_atomically(
      folder + "/failure.json",
      json::pretty(json::object{{"summary", summary.text()},
                                {"first_failure", to_json(summary.first)},
                                {"world_size", summary.world_size},
                                {"last_checkpoint", summary.last_checkpoint},
                                {"without_record", json::value_from(summary.silent)},
                                {"records", std::move(records)}}));
}

FailureSummary collect_failures(const std::string& folder) {
  std::vector<FailureRecord> records;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (is_record(entry.path())) read_into(entry.path(), &records);
  }
  if (records.empty()) {
    throw environment_error("launch", "no failure-rank-N.json below " + folder,
                            "copy the run folders of all hosts into it first");
  }
  std::set<std::string> jobs;
  for (const FailureRecord& r : records) jobs.insert(r.job_id);
  if (jobs.size() > 1) {
    throw environment_error("launch",
                            fmt::format("the records below {} are of {} jobs: {}", folder,
                                        jobs.size(), fmt::join(jobs, ", ")),
                            "collect those of one job at a time");
  }
  FailureSummary summary = summarize_failures(std::move(records));
  write_failure_summary(folder, summary);
  return summary;
}

void remove_failure_records(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> old = {fs::path(folder) / "failure.json"};
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_record(entry.path())) old.push_back(entry.path());
  }
  for (const fs::path& path : old) file_system().remove_all(path.string());
}

std::string last_complete_checkpoint(const std::string& run_folder) noexcept {
  try {
    for (const CheckpointFolder& c : list_checkpoints(checkpoints_folder(run_folder))) {
      if (path_exists(c.path + "/manifest.json")) return c.path;
    }
  } catch (const std::exception&) {
    // A folder that cannot be read holds no checkpoint that we could name.
  }
  return {};
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms.count() % 1000);
}

}  // namespace heddle
