// A fresh process with a deadline: where a plugin may crash, exit or hang without harm. Spawned,
// never forked: a fork after threads exist would hang in OpenMP.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace heddle {

struct ChildResult {
  std::string report;      // what it wrote to its report descriptor
  std::string output;      // the end of its stdout and stderr
  bool timed_out = false;  // it was killed at the deadline
  int signal = 0;          // the signal that ended it, 0 when it exited
  int exit_status = 0;
};

// Runs arguments[0] (a path) with standard input from /dev/null, no descriptors of this process
// and HEDDLE_PROBE_FD naming the report descriptor. Throws heddle::Error (environment) when it
// cannot be started.
ChildResult run_child(const std::vector<std::string>& arguments,
                      std::chrono::milliseconds deadline);

// In the child: the descriptor to report to, standard output when there is no parent that asks.
// Also binds this process's life to its parent's.
int child_report_descriptor();

}  // namespace heddle
