// How one optimizer step's sequences fall on ranks and micro-steps: for the trainer, and for
// whoever plans a run without being one.
#pragma once

#include <cstdint>

#include "framework/config/config.h"

namespace heddle {

struct BatchPlan {
  int64_t global_sequences = 0;  // of one step, on all ranks
  int64_t first = 0;             // this rank's share begins here ...
  int64_t count = 0;             // ... and has this many
  int64_t micro_batch = 0;       // sequences of a micro-step, at most; 1 with train.reproducible
  int64_t micro_steps() const { return (count + micro_batch - 1) / micro_batch; }
};

// Rank 0 has the largest share.
BatchPlan plan_batch(const TrainConfig& train, int64_t sequence_len, int rank, int world_size);

}  // namespace heddle
