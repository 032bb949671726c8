// One rule of the conformance suite in this process, and how its process talks to the one that
// started it: lines on the report descriptor.
//   # TEXT             what the plugin is about to do; the last one is where it crashed
//   @ NAME<tab>VERSION the plugin has been loaded
//   ! TEXT             it cannot be checked, and why
//   = RESULT           conformance::to_line() of the rule's result
#pragma once

#include <cstdint>
#include <string>

namespace heddle {

struct RuleArguments {
  std::string path;            // of the plugin, absolute
  std::string rule;            // its id
  std::string op;              // empty: all
  std::string spec;            // of one case; empty: the rule's own
  std::string device = "cpu";  // or "cuda"
  std::string dtype;           // "f32", "bf16", "f16"; empty: what the plugin accepts, fp32 first
  int64_t seed = 1;
  bool quick = false;
};

// Returns the exit status of the process.
int run_check_rule(const RuleArguments& arguments);

// 0 for an empty name.
uint32_t operation_of(const std::string& name);

}  // namespace heddle
