// A plugin is believed only after it has computed: a fresh process loads it, negotiates, and runs
// tiny problems whose numbers are compared with kernels/reference. Must run before MPI starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

// What the fresh process found out about a file.
struct PluginReport {
  bool usable = false;
  std::string refusal;  // when not usable: a predicate about the file
  std::string remedy;
  // What the plugin says of itself; empty when it did not get that far.
  std::string name, version, description, abi;
  uint32_t device_type = 0;
  std::vector<std::string> properties;
  struct Kernel {
    std::string op, kernel;
  };
  std::vector<Kernel> kernels;     // what ran, one per operation
  std::vector<std::string> notes;  // what it refused to run and why
};

// Probes `path` (absolute), or repeats the answer of an earlier probe of the same file by this
// process. Never throws for what a plugin does; throws heddle::Error (environment) when the probe
// program cannot be started. Environment: HEDDLE_PROBE_EXE (the program; otherwise this one when it
// is heddle, otherwise heddle_plugin_probe or heddle in ../bin), HEDDLE_PROBE_TIMEOUT_MS (10000).
PluginReport probe_plugin(const std::string& path);

// The fresh process. Writes progress lines that begin with '#' and one line of JSON to out_fd.
// Returns the exit status: 0 when a report was written, whatever it says.
int plugin_probe_main(const char* path, int out_fd);

}  // namespace heddle
