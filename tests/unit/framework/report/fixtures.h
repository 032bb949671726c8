// A device with round figures and a small model, so that expectations can be worked out by hand.
#pragma once

#include "framework/report/plan.h"

namespace heddle::test {

// 1 TFLOP/s of which half counts, links of 1 GB/s and no latency, transfers beside computation.
inline DeviceSpec round_device() {
  DeviceSpec d;
  d.name = "round";
  d.peak_flops = 1e12;
  d.model_share = 0.5;
  d.optimizer_share = 0.5;
  d.memory_bytes = 1e12;
  d.memory_bytes_per_s = 1e12;
  d.ring = true;
  d.overlap = 1;
  d.local = {1e9, 0};
  d.remote = {1e9, 0};
  return d;
}

inline Config small_config() {
  Config c;
  c.model.n_layer = 4;
  c.model.n_head = 4;
  c.model.n_embd = 128;
  c.model.sequence_len = 256;
  c.model.vocab_size = 512;
  c.train.device_batch_size = 4;
  c.train.total_batch_size = 256 * 32;
  return c;
}

inline PlanRequest request(int64_t hosts, int64_t per_host) {
  PlanRequest r;
  r.config = small_config();
  r.device = round_device();
  r.topology = {hosts, per_host};
  r.attention_workspace = [](const ModelSpec&, int64_t micro_batch) {
    return static_cast<size_t>(1000 * micro_batch);
  };
  return r;
}

inline size_t bytes_of(const LevelPlan& level, const std::string& kind) {
  for (const MemoryItem& item : level.memory) {
    if (item.kind == kind) return item.bytes;
  }
  return 0;
}

}  // namespace heddle::test
