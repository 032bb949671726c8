#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/checkpoint_names.h"
#include "framework/checkpoint/file_lock.h"
#include "framework/checkpoint/manifest.h"
#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/log.h"
#include "framework/core/version.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using namespace internal;

// In a temporary folder, locked by the process that writes it.
constexpr const char* kWriterLock = ".writer";

void null_what_json_lacks(json::value& v) {
  if (auto* d = v.if_double(); d != nullptr && !std::isfinite(*d)) {
    v = nullptr;
  } else if (auto* o = v.if_object()) {
    for (auto& member : *o) null_what_json_lacks(member.value());
  } else if (auto* a = v.if_array()) {
    for (auto& element : *a) null_what_json_lacks(element);
  }
}

ManifestFile write_tensors(const std::string& folder, const std::string& role,
                           const std::string& name, const std::vector<NamedTensor>& tensors) {
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");  // what other readers of the format look for
  writer.set_metadata("heddle_version", kVersion);
  for (const NamedTensor& t : tensors) writer.add(t);
  auto written = writer.write(folder + "/" + name);
  return {name, role, written.bytes, written.crc32c, std::move(written.tensor_crc32c)};
}

void write_text(const std::string& path, const std::string& text) {
  auto out = file_system().create(path);
  out->write(text.data(), text.size());
  out->close();
}

ManifestFile write_state(const std::string& folder, const CheckpointContents& contents) {
  json::object all{{"step", contents.step}, {"heddle_version", kVersion}};
  for (const auto& [key, v] : contents.state) all[key] = v;
  json::value state = std::move(all);
  null_what_json_lacks(state);
  const std::string text = json::pretty(state);
  write_text(folder + "/state.json", text);
  return {"state.json", "state", text.size(), crc32c(text.data(), text.size()), {}};
}

// What one rank adds to the folder.
std::vector<ManifestFile> write_part(const std::string& folder, const CheckpointContents& contents,
                                     int rank, int world_size) {
  std::vector<ManifestFile> files;
  if (rank == 0)
    files.push_back(write_tensors(folder, "model", "model.safetensors", contents.model));
  if (world_size == 1) {
    files.push_back(
        write_tensors(folder, "optimizer", "optimizer.safetensors", contents.optimizer));
  } else if (!contents.optimizer.empty()) {
    const std::string name =
        fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, world_size);
    files.push_back(write_tensors(folder, "optimizer", name, contents.optimizer));
  }
  if (rank == 0) files.push_back(write_state(folder, contents));
  return files;
}

void write_manifest(const std::string& folder, int64_t step, std::vector<ManifestFile> files) {
  Manifest manifest;
  manifest.step = step;
  manifest.heddle_version = kVersion;
  manifest.files = std::move(files);
  for (const ManifestFile& file : manifest.files) {
    if (path_exists(folder + "/" + file.name)) continue;
    throw environment_error("checkpoint",
                            folder + "/" + file.name +
                                " was written by another rank and is not "
                                "visible to rank 0",
                            "set log.dir to a folder on a file system that all ranks share");
  }
  write_text(folder + "/" + kManifestName, manifest.text());
}

// For clean-up on the way out of a failure or after a success: its own failure changes nothing.
void try_remove(const std::string& path) {
  try {
    file_system().remove_all(path);
  } catch (const Error& e) {
    log::warn("{}", e.what());
  }
}

// Temporary folders that a killed writer left. One whose writer lives is not ours to touch.
void remove_stale_temporaries(const std::string& folder) {
  std::error_code ec;
  std::vector<std::string> found;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().starts_with(kTemporaryPrefix)) found.push_back(it->path());
  }
  for (const std::string& path : found) {
    const std::string lock_path = path + "/" + kWriterLock;
    std::string holder;
    if (path_exists(lock_path) && !FileLock::try_acquire(lock_path, &holder)) {
      log::warn("{} is being written by {}", path, holder);
      continue;
    }
    try_remove(path);
  }
}

void remove_checkpoint(const std::string& path) {
  // Out of sight first: a removal that is interrupted must not leave a damaged checkpoint.
  const std::string doomed =
      parent_folder(path) + "/.tmp-" + fs::path(path).filename().string() + ".removed";
  try {
    file_system().rename(path, doomed);
    file_system().remove_all(doomed);
  } catch (const Error& e) {
    log::warn("{}", e.what());
  }
}

bool complete(const std::string& path) {
  try {
    Manifest::read(path).verify(path, false);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void apply_retention(const std::string& folder, int64_t keep) {
  if (keep <= 0) return;
  int64_t kept = 0;
  for (const CheckpointFolder& c : list_checkpoints(folder)) {
    if (!complete(c.path)) continue;
    if (++kept > keep) remove_checkpoint(c.path);
  }
}

// Gives the finished temporary its name; a folder that has it already moves aside and remains
// loadable until the new one is durable.
void publish(const std::string& temporary, const std::string& target, bool* in_place) {
  const std::string folder = parent_folder(target);
  const std::string aside = target + std::string(kReplacedSuffix);
  if (path_exists(target)) {
    if (path_exists(aside)) remove_checkpoint(aside);
    file_system().rename(target, aside);
  }
  try {
    file_system().rename(temporary, target);
  } catch (const Error&) {
    if (path_exists(aside)) file_system().rename(aside, target);
    throw;
  }
  *in_place = true;
  file_system().sync_directory(folder);
  if (path_exists(aside)) remove_checkpoint(aside);
}

// Runs `body` and hands its text to all ranks. When it failed on any, all fail, naming the ranks.
template <class Body>
std::vector<std::string> agreed(Communicator& comm, Body&& body) {
  std::string text, problem, remedy;
  try {
    text = body();
  } catch (const Error& e) {
    problem = e.message();
    remedy = e.remedy();
  }
  const auto problems = comm.all_gather_strings(problem);
  const auto remedies = comm.all_gather_strings(remedy);
  std::string all;
  size_t first = problems.size();
  for (size_t r = problems.size(); r-- > 0;) {
    if (problems[r].empty()) continue;
    first = r;
    const std::string where = comm.world_size() == 1 ? "" : fmt::format("rank {}: ", r);
    all = where + problems[r] + (all.empty() ? "" : "; ") + all;
  }
  if (!all.empty()) throw environment_error("checkpoint", all, remedies[first]);
  return comm.all_gather_strings(text);
}

// Saving, step by step; each step succeeds on all ranks or fails on all.
class Save {
 public:
  Save(Communicator& comm, const std::string& folder, const CheckpointContents& contents)
      : comm_(comm),
        contents_(contents),
        folder_(folder),
        target_(folder + "/" + step_name(contents.step)),
        temporary_(folder + "/.tmp-" + step_name(contents.step)) {}
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  const std::string& target() const { return target_; }
  bool in_place() const { return in_place_; }
  // After a failure, when no rank writes any more.
  void clean_up() {
    lock_.reset();
    if (ours_ && !in_place_) try_remove(temporary_);
  }

  void run() {
    agreed(comm_, [&] { return chief() ? prepare() : ""; });
    const auto parts = agreed(comm_, [&] { return write(); });
    agreed(comm_, [&] { return chief() ? finish(parts) : ""; });
  }

 private:
  bool chief() const { return comm_.rank() == 0; }

  std::string prepare() {
    file_system().create_directories(folder_);
    file_system().sync_directory(parent_folder(folder_));
    remove_stale_temporaries(folder_);
    if (!file_system().create_directory(temporary_)) {
      throw environment_error("checkpoint", temporary_ + " is in use by another writer",
                              "stop the other job");
    }
    ours_ = true;
    std::string holder;
    lock_ = FileLock::try_acquire(temporary_ + "/" + kWriterLock, &holder);
    if (!lock_) throw environment_error("checkpoint", temporary_ + " is in use by " + holder);
    return "";
  }

  std::string write() {
    std::string lines;
    for (const auto& file : write_part(temporary_, contents_, comm_.rank(), comm_.world_size())) {
      lines += file.text() + "\n";
    }
    if (!chief()) file_system().sync_directory(temporary_);
    return lines;
  }

  std::string finish(const std::vector<std::string>& parts) {
    std::vector<ManifestFile> files;
    for (const std::string& part : parts) {
      std::istringstream lines(part);
      for (std::string line; std::getline(lines, line);) files.push_back(ManifestFile::parse(line));
    }
    write_manifest(temporary_, contents_.step, std::move(files));
    lock_.reset();
    file_system().sync_directory(temporary_);
    publish(temporary_, target_, &in_place_);
    return "";
  }

  Communicator& comm_;
  const CheckpointContents& contents_;
  const std::string folder_, target_, temporary_;
  std::optional<FileLock> lock_;
  bool ours_ = false, in_place_ = false;
};

}  // namespace

std::string save_checkpoint(Communicator& comm, const std::string& folder,
                            const CheckpointContents& contents, int64_t keep) {
  Save save(comm, folder, contents);
  try {
    save.run();
  } catch (const Error& e) {
    if (e.code() == ExitCode::kCommunication) throw;
    save.clean_up();
    throw environment_error(
        "checkpoint",
        fmt::format("step {} was not saved: {}; {}", contents.step, e.message(),
                    save.in_place() ? "it is in place but may not survive a power loss"
                                    : "earlier checkpoints in " + folder + " are untouched"),
        e.remedy());
  }
  if (comm.rank() == 0) apply_retention(folder, keep);
  return save.target();
}

}  // namespace heddle
