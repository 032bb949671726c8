// Every plugin file that was found, with what its probe said: what `heddle plugin list` prints and
// what the host chooses from.
#pragma once

#include <string>
#include <vector>

#include "framework/attention/discovery.h"
#include "framework/attention/probe.h"

namespace heddle {

struct PluginCandidate {
  PluginFile file;
  PluginReport report;

  // The plugin's name, or what its file name suggests (libheddle_NAME.so, NAME.so) when it never
  // got to say it.
  std::string display_name() const;
  // "it needs the library libx.so.1, which is not found. install ...": sentence for messages.
  std::string why_not() const;
};

struct PluginCatalog {
  PluginFiles files;
  std::vector<PluginCandidate> plugins;  // in order of preference
};

// Finds and probes. Of plugins with one name the first is kept, the others are refused.
PluginCatalog make_plugin_catalog(const AttentionConfig& config);

}  // namespace heddle
