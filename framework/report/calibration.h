// Rates from one measured run instead of a table: what `heddle plan --calibrate` does.
#pragma once

#include <cstdint>
#include <string>

#include "framework/config/config.h"
#include "framework/report/plan.h"

namespace heddle {

// Medians over the steps of a run, the first of them left out.
struct MeasuredRun {
  Config config;
  Topology topology;
  int64_t threads = 1;     // of a rank
  int64_t processors = 1;  // that the rank may run on
  int64_t steps = 0;       // that the medians are of
  double step_seconds = 0;
  double comm_seconds = 0;  // in which the rank did nothing but communicate
  double optimizer_seconds = 0;
};

// Reads a metrics.jsonl and the config.yaml beside it. Throws heddle::Error (environment) naming
// the file and what is missing.
MeasuredRun read_measured_run(const std::string& metrics_path);

// `device` with the rates that make the plan of the measured run take the time that it took: shares
// of peak for model and optimizer and, where ranks talked, the bandwidth of the link that limits
// them. `request` supplies what the measured run does not (the attention workspace).
DeviceSpec calibrate(const DeviceSpec& device, const MeasuredRun& run, const PlanRequest& request);

}  // namespace heddle
