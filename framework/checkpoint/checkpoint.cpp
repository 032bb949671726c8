#include "framework/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "framework/checkpoint/checkpoint_names.h"
#include "framework/checkpoint/manifest.h"
#include "framework/checkpoint/run_folder.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/log.h"

namespace heddle {
namespace internal {

std::string step_name(int64_t step) {
  return fmt::format("{}{:06}", kStepPrefix, step);
}

std::optional<StepName> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  StepName parsed{0, name.ends_with(kReplacedSuffix)};
  if (parsed.replaced) name.remove_suffix(kReplacedSuffix.size());
  const char* end = name.data() + name.size();
  const auto [at, ec] = std::from_chars(name.data(), end, parsed.step);
  if (ec != std::errc() || at != end || name.empty() || name[0] == '-') return std::nullopt;
  return parsed;
}

}  // namespace internal

namespace {

namespace fs = std::filesystem;

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool is_step_folder(const std::string& path) {
  return internal::parse_step_name(fs::path(path).filename().string()).has_value() ||
         path_exists(path + "/" + kManifestName);
}

// The newest valid checkpoint beside `path` that is older than it, as a remedy.
std::string newest_good_one_before(const std::string& path) {
  const auto self = internal::parse_step_name(fs::path(path).filename().string());
  for (const CheckpointFolder& c : list_checkpoints(parent_folder(path))) {
    if (c.path == path || (self && c.step > self->step)) continue;
    try {
      Manifest::read(c.path).verify(c.path, true);
      return "the newest good one before it is " + c.path;
    } catch (const Error&) {
    }
  }
  return "there is no good one before it in " + parent_folder(path);
}

}  // namespace

std::vector<CheckpointFolder> list_checkpoints(const std::string& checkpoints_folder) {
  struct Found {
    internal::StepName name;
    std::string path;
  };
  std::vector<Found> found;
  std::error_code ec;
  const std::string folder = without_trailing_slash(checkpoints_folder);
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    const auto parsed = internal::parse_step_name(name);
    if (parsed && folder_exists(it->path())) found.push_back({*parsed, folder + "/" + name});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    if (a.name.step != b.name.step) return a.name.step > b.name.step;
    if (a.name.replaced != b.name.replaced) return b.name.replaced;
    return a.path < b.path;
  });
  std::vector<CheckpointFolder> list;
  for (Found& f : found) list.push_back({f.name.step, std::move(f.path)});
  return list;
}

Checkpoint::Checkpoint(std::string path)
    : path_(std::move(path)), model_(path_), optimizer_(path_) {}

Checkpoint Checkpoint::open_verified(const std::string& step_folder, Verify verify) {
  const Manifest manifest = Manifest::read(step_folder);
  manifest.verify(step_folder, verify == Verify::kContents);
  Checkpoint c(step_folder);
  c.step_ = manifest.step;
  for (const ManifestFile& file : manifest.files) {
    const std::string path = step_folder + "/" + file.name;
    if (file.role == "state") {
      c.state_ = json::read_file(path).as_object();
      continue;
    }
    TensorSet& set = file.role == "model" ? c.model_ : c.optimizer_;
    c.files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& [name, tensor] : c.files_.back()->tensors()) set.insert(tensor);
  }
  return c;
}

Checkpoint Checkpoint::open(const std::string& given, Verify verify) {
  const std::string path = without_trailing_slash(given);
  if (!folder_exists(path)) {
    throw environment_error(
        "checkpoint", "there is no checkpoint folder " + path,
        folder_exists(parent_folder(path)) && !list_checkpoints(parent_folder(path)).empty()
            ? newest_good_one_before(path)
            : "give a step folder, a checkpoints folder or a run folder");
  }
  if (is_step_folder(path)) {
    try {
      return open_verified(path, verify);
    } catch (const Error& e) {
      throw environment_error(
          "checkpoint", e.message(),
          (e.remedy().empty() ? "" : e.remedy() + "; ") + newest_good_one_before(path));
    }
  }
  const std::string inner = checkpoints_folder(path);
  const std::string folder = folder_exists(inner) ? inner : path;
  std::string skipped;
  auto newest = open_newest(folder, &skipped);
  if (!newest) {
    throw environment_error("checkpoint", "there is no checkpoint in " + folder,
                            "give a step folder, a checkpoints folder or a run folder");
  }
  if (!skipped.empty()) log::warn("{}", skipped);
  return std::move(*newest);
}

std::optional<Checkpoint> open_newest(const std::string& checkpoints_folder, std::string* skipped) {
  std::string report;
  std::optional<Checkpoint> taken;
  for (const CheckpointFolder& c : list_checkpoints(checkpoints_folder)) {
    try {
      taken = Checkpoint::open_verified(c.path, Verify::kContents);
      break;
    } catch (const Error& e) {
      report += "skipped checkpoint " + c.path + ": " + e.message() + "\n";
    }
  }
  if (!taken && !report.empty()) {
    throw environment_error("checkpoint",
                            "no checkpoint in " + checkpoints_folder + " can be read:\n" + report,
                            "restore one, or start a new run with train.resume=never");
  }
  if (!report.empty()) report += "taking " + taken->path() + " instead";
  if (skipped != nullptr) *skipped = report;
  return taken;
}

}  // namespace heddle
