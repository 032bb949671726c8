#include "framework/report/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/core/json.h"

namespace heddle {
namespace {

constexpr size_t kFewestSteps = 3;

struct Lines {
  std::vector<double> step, comm, optimizer;
  json::value last;
};

Error unusable(const std::string& path, const std::string& why) {
  return environment_error("plan", path + " " + why,
                           "name the metrics.jsonl of a run of this version with at least 4 steps");
}

Lines read_lines(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw unusable(path, "cannot be read");
  Lines lines;
  for (std::string text; std::getline(in, text);) {
    boost::system::error_code error;
    json::value v = json::parse(text, error);
    if (error || !v.is_object() || !v.as_object().contains("train/dt")) continue;
    for (const char* key : {"train/comm_ms", "train/optim_ms", "run/ranks", "run/ranks_per_host",
                            "run/threads", "run/processors"}) {
      if (!v.as_object().contains(key)) throw unusable(path, fmt::format("has no {}", key));
    }
    lines.step.push_back(v.at("train/dt").to_number<double>());
    lines.comm.push_back(v.at("train/comm_ms").to_number<double>() / 1e3);
    lines.optimizer.push_back(v.at("train/optim_ms").to_number<double>() / 1e3);
    lines.last = std::move(v);
  }
  if (lines.step.size() <= kFewestSteps) {
    throw unusable(path, fmt::format("has {} measured steps", lines.step.size()));
  }
  return lines;
}

double median_after_first(std::vector<double> values) {
  values.erase(values.begin());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

MeasuredRun read_measured_run(const std::string& metrics_path) {
  const Lines lines = read_lines(metrics_path);
  const auto count = [&](const char* key) { return lines.last.at(key).to_number<int64_t>(); };
  MeasuredRun run;
  run.config =
      load_config((std::filesystem::path(metrics_path).parent_path() / "config.yaml").string());
  const int64_t per_host = std::max<int64_t>(1, count("run/ranks_per_host"));
  run.topology = {(count("run/ranks") + per_host - 1) / per_host, per_host};
  run.threads = count("run/threads");
  run.processors = count("run/processors");
  run.steps = static_cast<int64_t>(lines.step.size()) - 1;
  run.step_seconds = median_after_first(lines.step);
  run.comm_seconds = median_after_first(lines.comm);
  run.optimizer_seconds = median_after_first(lines.optimizer);
  return run;
}

DeviceSpec calibrate(const DeviceSpec& device, const MeasuredRun& run, const PlanRequest& request) {
  PlanRequest measured = request;
  measured.config = run.config;
  measured.config.train.threads = run.threads;
  measured.topology = run.topology;
  measured.device = device;
  measured.device.processors = run.processors;
  const ShardLevel level = parse_shard_level(run.config.dist.shard);
  const StepTime predicted = make_plan(measured).level(level).time;

  DeviceSpec out = measured.device;
  const double model = run.step_seconds - run.comm_seconds - run.optimizer_seconds;
  if (model <= 0 || run.optimizer_seconds <= 0) {
    throw environment_error("plan", "the measured run spent no time on its model or its optimizer",
                            "measure a longer run");
  }
  out.model_share *= (predicted.forward + predicted.backward) / model;
  // Muon and AdamW are scaled together: a run does not tell them apart.
  const double optimizer = predicted.optimizer / run.optimizer_seconds;
  out.optimizer_share *= optimizer;
  out.memory_bytes_per_s *= optimizer;
  if (run.topology.ranks() > 1 && run.comm_seconds > 0) {
    Link& link = run.topology.hosts > 1 ? out.remote : out.local;
    const double exposed = predicted.reduce_exposed + predicted.gather_exposed;
    if (exposed > 0) {
      link.bytes_per_s *= exposed / run.comm_seconds;
      link.latency_s *= run.comm_seconds / exposed;
    }
  }
  out.source = fmt::format(
      "{} steps measured on {} ranks of {} threads: {:.1f} ms a step, {:.1f} of "
      "them optimizer, {:.1f} communication",
      run.steps, run.topology.ranks(), run.threads, run.step_seconds * 1e3,
      run.optimizer_seconds * 1e3, run.comm_seconds * 1e3);
  return out;
}

}  // namespace heddle
