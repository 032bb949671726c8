// One JSON object a line in metrics.jsonl: the record of a run that tools and people read back.
// Keys are nanochat's (train/loss, train/lrm, train/dt, train/tok_per_sec, train/mfu, val/bpb), so
// dashboards port.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/core/json.h"

namespace heddle {

class MetricsFile {
 public:
  // Appends to `path`. Lines of steps after `resumed_step` are dropped first: they are about to be
  // computed again. Pass 0 for a new run.
  MetricsFile(const std::string& path, int64_t resumed_step);
  ~MetricsFile();
  // Written and flushed at once, so that a run can be followed and nothing is lost when it dies.
  void write(const json::object& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Largest resident set of this process so far, in bytes.
int64_t peak_resident_bytes();

}  // namespace heddle
