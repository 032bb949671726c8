#include <fmt/format.h>

#include <cmath>
#include <filesystem>

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
                           const std::vector<NamedTensor>& tensors) {
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");  // what other readers of the format look for
  writer.set_metadata("heddle_version", kVersion);
  for (const NamedTensor& t : tensors) writer.add(t);
  const std::string name = role + ".safetensors";
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

void write_contents(const std::string& folder, const CheckpointContents& contents) {
  Manifest manifest;
  manifest.step = contents.step;
  manifest.heddle_version = kVersion;
  manifest.files.push_back(write_tensors(folder, "model", contents.model));
  manifest.files.push_back(write_tensors(folder, "optimizer", contents.optimizer));
  manifest.files.push_back(write_state(folder, contents));
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

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointContents& contents,
                            int64_t keep) {
  const std::string name = step_name(contents.step);
  const std::string target = folder + "/" + name;
  const std::string temporary = folder + "/.tmp-" + name;
  bool ours = false, in_place = false;
  try {
    file_system().create_directories(folder);
    file_system().sync_directory(parent_folder(folder));
    remove_stale_temporaries(folder);
    if (!file_system().create_directory(temporary)) {
      throw environment_error("checkpoint", temporary + " is in use by another writer",
                              "stop the other job");
    }
    ours = true;
    {
      std::string holder;
      const auto lock = FileLock::try_acquire(temporary + "/" + kWriterLock, &holder);
      if (!lock) throw environment_error("checkpoint", temporary + " is in use by " + holder);
      write_contents(temporary, contents);
    }
    file_system().sync_directory(temporary);
    publish(temporary, target, &in_place);
  } catch (const Error& e) {
    if (ours && !in_place) try_remove(temporary);
    throw environment_error(
        "checkpoint",
        fmt::format("step {} was not saved: {}; {}", contents.step, e.message(),
                    in_place ? "it is in place but may not survive a power loss"
                             : "earlier checkpoints in " + folder + " are untouched"),
        e.remedy());
  }
  apply_retention(folder, keep);
  return target;
}

}  // namespace heddle
