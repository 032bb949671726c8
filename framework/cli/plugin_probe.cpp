#include "framework/attention/child_process.h"
#include "framework/attention/probe.h"
#include "framework/cli/plugin_commands.h"

namespace heddle {

int run_plugin_probe(const std::string& path) {
  return plugin_probe_main(path.c_str(), child_report_descriptor());
}

}  // namespace heddle
