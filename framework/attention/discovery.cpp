#include "framework/attention/discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "framework/core/error.h"
#include "framework/core/version.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "HEDDLE_PLUGIN_PATH";

class Collector {
 public:
  // False when there is nothing at `entry`.
  bool add(const std::string& entry, const std::string& source) {
    std::error_code ec;
    const fs::path path = fs::absolute(entry, ec);
    if (fs::is_directory(path, ec)) {
      add_folder(path, source);
      return true;
    }
    if (!fs::exists(path, ec)) return false;
    add_file(path, source, true);
    return true;
  }

  void add_folder(const fs::path& folder, const std::string& source) {
    found_.folders.push_back(folder.lexically_normal().string());
    std::error_code ec;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ec)) {
      std::error_code ignored;
      if (entry.path().extension() == ".so" && !entry.is_directory(ignored)) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) add_file(file, source, false);
  }

  PluginFiles found_;

 private:
  // The same file by another way (a link, a folder given twice) is not a second plugin.
  void add_file(const fs::path& file, const std::string& source, bool named) {
    std::error_code ec;
    const fs::path real = fs::canonical(file, ec);
    if (!seen_.insert(ec ? file.string() : real.string()).second) return;
    found_.files.push_back({file.lexically_normal().string(), source, named});
  }

  std::set<std::string> seen_;
};

std::vector<std::string> split_path(const char* text) {
  std::vector<std::string> entries;
  std::string rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    // An empty entry would mean the current directory to a shell; here it means nothing.
    if (colon != 0) entries.push_back(rest.substr(0, colon));
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return entries;
}

}  // namespace

std::string executable_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path().string();
}

PluginFiles find_plugin_files(const AttentionConfig& config) {
  Collector collector;
  for (const std::string& entry : config.plugin_path) {
    if (collector.add(entry, "attention.plugin_path")) continue;
    throw plugin_error(fmt::format("attention.plugin_path names '{}', which does not exist", entry),
                       "name a plugin's .so file or a folder of them");
  }
  for (const std::string& entry : split_path(std::getenv(kVariable))) {
    if (!collector.add(entry, kVariable)) collector.found_.not_found.push_back(entry);
  }
  const fs::path built_in = fs::path(executable_folder()).parent_path() / kPluginFolder;
  std::error_code ec;
  if (fs::is_directory(built_in, ec)) collector.add_folder(built_in, "built-in folder");
  return std::move(collector.found_);
}

}  // namespace heddle
