// `heddle plugin list` and the fresh process that probing starts.
#pragma once

#include <string>

#include "framework/config/config.h"

namespace heddle {

// Prints every plugin found, in order of preference, and every file refused with the reason, as
// text or JSON. Returns 0 also when files were refused: a list is a report.
int run_plugin_list(const AttentionConfig& config, bool json);

// `heddle plugin-probe PATH`, hidden: loads the plugin and runs the probe's problems in this
// process. Its report goes to the descriptor that HEDDLE_PROBE_FD names, else to standard output.
int run_plugin_probe(const std::string& path);

}  // namespace heddle
