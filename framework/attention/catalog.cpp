#include "framework/attention/catalog.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

namespace heddle {

std::string PluginCandidate::display_name() const {
  if (!report.name.empty()) return report.name;
  const std::string stem = std::filesystem::path(file.path).stem().string();
  std::string_view name = stem;
  for (const std::string_view prefix : {"lib", "heddle_"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return std::string(name);
}

std::string PluginCandidate::why_not() const {
  if (report.remedy.empty()) return report.refusal;
  return fmt::format("{}. {}", report.refusal, report.remedy);
}

PluginCatalog make_plugin_catalog(const AttentionConfig& config) {
  PluginCatalog catalog;
  catalog.files = find_plugin_files(config);
  for (const PluginFile& file : catalog.files.files) {
    PluginCandidate candidate{file, probe_plugin(file.path)};
    for (const PluginCandidate& earlier : catalog.plugins) {
      PluginReport& report = candidate.report;
      if (!report.usable || !earlier.report.usable || earlier.report.name != report.name) continue;
      report.usable = false;
      report.refusal = fmt::format("has the name '{}', which {} has already taken", report.name,
                                   earlier.file.path);
      report.remedy = "put the wanted one first in attention.plugin_path, or remove one";
    }
    catalog.plugins.push_back(std::move(candidate));
  }
  return catalog;
}

}  // namespace heddle
