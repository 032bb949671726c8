// One measurement of `heddle plugin bench`, made in a fresh process: one plugin, one case.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "framework/cli/bench_case.h"

namespace heddle {

struct Measurement {
  std::string failure;  // refused, wrong, crashed, ...: then nothing below holds
  bool refused = false;
  double us = 0.0;  // of one call, the median of `calls`
  int64_t calls = 0;
  std::string version, kernel;
  uint64_t workspace_bytes = 0;
  double est_us = 0.0;
  bool deterministic = false;
};

struct MeasureOptions {
  int threads = 0;
  std::string device = "cpu";  // or "cuda"
  bool any_order = false;      // do not ask for the same bits every time
  bool verify = false;         // compare one head with kernels/reference after the timing
  std::chrono::milliseconds deadline{60000};
};

// Starts a process of this executable that does it. What the plugin does to that process ends up in
// `failure`.
Measurement measure_in_child(const std::string& path, const BenchCase& c,
                             const MeasureOptions& options);

// The child: measures and reports. Returns the exit status of the process.
int run_measurement(const std::string& path, const std::string& case_text,
                    const MeasureOptions& options);

// What this machine can do at most, on all threads.
struct MachineLimits {
  double flops = 0.0;             // a burst of fused multiply-adds; 0: unknown
  double bytes_per_second = 0.0;  // reading memory that is in no cache
};
MachineLimits measure_machine();
// What the table of `heddle plan` states of the GPU that `description` names, for 16-bit products;
// zeros when it has none, or another model of that name.
MachineLimits stated_limits(const std::string& description);

}  // namespace heddle
