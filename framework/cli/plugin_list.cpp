#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "framework/attention/catalog.h"
#include "framework/attention/names.h"
#include "framework/attention/probe_report.h"
#include "framework/cli/plugin_commands.h"
#include "framework/core/json.h"

namespace heddle {
namespace {

void print_usable(const PluginCandidate& c) {
  const PluginReport& r = c.report;
  fmt::print("{} {} (ABI {}, {})  {}\n", r.name, r.version, r.abi, device_name(r.device_type),
             r.description);
  for (const auto& k : r.kernels) fmt::print("  {:<8} {}\n", k.op, k.kernel);
  if (!r.properties.empty()) fmt::print("  declares {}\n", fmt::join(r.properties, ", "));
  for (const std::string& note : r.notes) fmt::print("  {}\n", note);
  fmt::print("  {} ({})\n", c.file.path, c.file.source);
}

void print_text(const PluginCatalog& catalog) {
  bool refused = false, usable = false;
  for (const PluginCandidate& c : catalog.plugins) {
    (c.report.usable ? usable : refused) = true;
    if (c.report.usable) print_usable(c);
  }
  if (!usable) {
    fmt::print("No usable attention plugin; searched {}.\n",
               fmt::join(catalog.files.folders, ", "));
  }
  if (refused) fmt::print("Refused:\n");
  for (const PluginCandidate& c : catalog.plugins) {
    if (!c.report.usable) fmt::print("  {} {}\n", c.file.path, c.why_not());
  }
  for (const std::string& path : catalog.files.not_found) {
    fmt::print("HEDDLE_PLUGIN_PATH names {}, which does not exist.\n", path);
  }
}

void print_json(const PluginCatalog& catalog) {
  json::array plugins, folders, not_found;
  for (const PluginCandidate& c : catalog.plugins) {
    json::object object = report_object(c.report);
    object["path"] = c.file.path;
    object["source"] = c.file.source;
    plugins.emplace_back(std::move(object));
  }
  for (const std::string& f : catalog.files.folders) folders.emplace_back(f);
  for (const std::string& f : catalog.files.not_found) not_found.emplace_back(f);
  fmt::print("{}", json::pretty(json::object{
                       {"plugins", plugins}, {"folders", folders}, {"not_found", not_found}}));
}

}  // namespace

int run_plugin_list(const AttentionConfig& config, bool json) {
  const PluginCatalog catalog = make_plugin_catalog(config);
  json ? print_json(catalog) : print_text(catalog);
  return 0;
}

}  // namespace heddle
