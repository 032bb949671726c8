// What a run will need and how long a step will take, before anything is allocated: `heddle plan`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/model/gpt.h"
#include "framework/report/step_model.h"

namespace heddle {

struct PlanRequest {
  Config config;
  int64_t vocab_size = 0;  // of the tokenizer; 0: model.vocab_size is given
  DeviceSpec device;
  Topology topology;
  bool overlap = true;
  // The largest block that attention asks for with `micro_batch` sequences in a micro-step, bytes.
  std::function<size_t(const ModelSpec&, int64_t micro_batch)> attention_workspace;
};

// Memory of a rank (of each kind the most that a rank has), communication and time at one
// dist.shard level.
struct LevelPlan {
  ShardLevel level = ShardLevel::kNone;
  std::vector<MemoryItem> memory;
  double sent_bytes = 0;  // that the rank with the most hands to its peers, per step
  StepTime time;
  double efficiency = 1;  // tokens/s against as many devices that need not talk

  double memory_bytes() const;
};

struct RunPlan {
  ModelSpec spec;
  ParamCounts params;
  double flops_per_token = 0;
  int64_t global_sequences = 0;
  int64_t rank_sequences = 0;  // of the rank with the most
  int64_t micro_batch = 0;
  int64_t micro_steps = 0;
  int64_t threads = 1;     // of a rank, on a shared host
  double rank_memory = 0;  // bytes there are
  std::vector<LevelPlan> levels;

  const LevelPlan& level(ShardLevel level) const { return levels[static_cast<size_t>(level)]; }
  bool fits(const LevelPlan& l) const { return l.memory_bytes() <= rank_memory; }
  double tokens() const {
    return static_cast<double>(global_sequences) * static_cast<double>(spec.sequence_len);
  }
};

// Throws heddle::Error (config) when the model cannot be, or ranks outnumber sequences.
RunPlan make_plan(const PlanRequest& request);

// Workspace for make_plan(): on the CPU what the plugin chosen for this configuration and the
// threads of a rank asks for (the process's pool is set to them), elsewhere an estimate: fp32 sums
// of dQ and of the row sums of dO * O, as a flash backward keeps.
std::function<size_t(const ModelSpec&, int64_t)> attention_workspace_of(const PlanRequest& request);

}  // namespace heddle
