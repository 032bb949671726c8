#include "framework/data/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>

#include "framework/core/error.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

struct KindName {
  DataKind kind;
  std::string_view name, extension;
};
constexpr std::array<KindName, 4> kKinds = {{{DataKind::kRecall, "recall", ""},
                                             {DataKind::kText, "text", ".txt"},
                                             {DataKind::kJsonl, "jsonl", ".jsonl"},
                                             {DataKind::kTokens, "tokens", ".bin"}}};

Error setting_error(std::string message, std::string remedy) {
  return {ExitCode::kConfig, "data", std::move(message), std::move(remedy)};
}

std::optional<DataKind> kind_by_extension(const fs::path& path) {
  const std::string extension = path.extension().string();
  for (const KindName& entry : kKinds) {
    if (!extension.empty() && extension == entry.extension) return entry.kind;
  }
  return std::nullopt;
}

fs::file_status existing(const std::string& path, std::string_view key) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (status.type() == fs::file_type::not_found) {
    throw environment_error("data", fmt::format("{}: there is no {}", key, path),
                            fmt::format("set {} to a file or folder that exists, relative to the "
                                        "current folder ({})",
                                        key, fs::current_path().string()));
  }
  if (ec) {
    throw environment_error("data", fmt::format("{}: cannot read {}: {}", key, path, ec.message()),
                            fmt::format("check {}", key));
  }
  return status;
}

// Files in the folder, sorted; hidden ones and folders left out.
std::vector<std::string> list(const std::string& folder, std::string_view key) {
  std::vector<std::string> paths;
  try {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with(".")) continue;
      if (!entry.is_directory()) paths.push_back(entry.path().string());
    }
  } catch (const fs::filesystem_error& e) {
    throw environment_error("data",
                            fmt::format("{}: cannot list {}: {}", key, folder, e.code().message()),
                            "make the folder readable for this user");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

DataKind kind_of_folder(const std::string& folder, std::string_view key) {
  std::set<DataKind> kinds;
  std::string examples;
  for (const std::string& path : list(folder, key)) {
    const auto kind = kind_by_extension(path);
    if (!kind.has_value() || !kinds.insert(*kind).second) continue;
    examples += (examples.empty() ? "" : ", ") + fs::path(path).filename().string();
  }
  if (kinds.size() == 1) return *kinds.begin();
  if (kinds.empty()) {
    throw environment_error("data",
                            fmt::format("{}: the folder {} has no data files, expected .txt, "
                                        ".jsonl or .bin",
                                        key, folder),
                            "put the files there under one of these endings");
  }
  throw setting_error(
      fmt::format("{}: the folder {} holds several kinds of data ({})", key, folder, examples),
      "set data.kind to text, jsonl or tokens, or move the others away");
}

DataKind kind_of_path(const std::string& path, std::string_view key) {
  if (fs::is_directory(existing(path, key))) return kind_of_folder(path, key);
  if (const auto kind = kind_by_extension(path)) return *kind;
  throw setting_error(
      fmt::format("{}: the ending of {} does not say what it holds, expected .txt, .jsonl or .bin",
                  key, path),
      "set data.kind to text, jsonl or tokens");
}

DataKind kind_of_both(const DataConfig& config) {
  const DataKind kind = kind_of_path(config.path, "data.path");
  if (config.val_path.empty()) return kind;
  const DataKind val_kind = kind_of_path(config.val_path, "data.val_path");
  if (val_kind == kind) return kind;
  throw setting_error(
      fmt::format("data.val_path is {}, but data.path is {}: {}, {}", data_kind_name(val_kind),
                  data_kind_name(kind), config.val_path, config.path),
      "give both the same kind of file, or set data.kind");
}

}  // namespace

std::string_view data_kind_name(DataKind kind) {
  return std::find_if(kKinds.begin(), kKinds.end(),
                      [&](const KindName& entry) { return entry.kind == kind; })
      ->name;
}

DataKind resolve_kind(const DataConfig& config) {
  const bool recall = config.kind == "recall" || (config.kind == "auto" && config.path.empty());
  if (recall) {
    const std::string& path = config.path.empty() ? config.val_path : config.path;
    if (path.empty()) return DataKind::kRecall;
    throw setting_error(fmt::format("{}: the recall corpus is generated and reads no file, got {}",
                                    config.path.empty() ? "data.val_path" : "data.path", path),
                        config.path.empty() ? "set data.path as well, or remove data.val_path"
                                            : "remove data.path, or set data.kind=auto");
  }
  if (config.path.empty()) {
    throw setting_error(fmt::format("data.kind is {} but data.path is empty", config.kind),
                        "set data.path to a file or folder");
  }
  if (config.kind == "auto") return kind_of_both(config);
  for (const KindName& entry : kKinds) {
    if (entry.name == config.kind) return entry.kind;
  }
  throw setting_error("unknown data.kind " + config.kind,
                      "expected auto, recall, text, jsonl or tokens");
}

std::vector<std::string> data_files(const std::string& path, DataKind kind, std::string_view key) {
  if (!fs::is_directory(existing(path, key))) return {path};
  std::vector<std::string> paths = list(path, key);
  std::erase_if(paths, [&](const std::string& file) { return kind_by_extension(file) != kind; });
  if (!paths.empty()) return paths;
  const auto& entry = *std::find_if(kKinds.begin(), kKinds.end(),
                                    [&](const KindName& k) { return k.kind == kind; });
  throw environment_error("data",
                          fmt::format("{}: the folder {} has no data files, expected *{} (kind {})",
                                      key, path, entry.extension, entry.name),
                          fmt::format("put the files there, or correct {}", key));
}

}  // namespace heddle
