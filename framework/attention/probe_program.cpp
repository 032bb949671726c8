// `heddle_plugin_probe plugin-probe PATH`: what heddle itself does under that name, for programs
// other than heddle that load plugins (tests, embedders).
#include <cstdio>
#include <string_view>

#include "framework/attention/child_process.h"
#include "framework/attention/probe.h"

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "plugin-probe") {
    std::fprintf(stderr, "usage: %s plugin-probe PLUGIN.so\n", argv[0]);
    return 2;
  }
  return heddle::plugin_probe_main(argv[2], heddle::child_report_descriptor());
}
