// What changes from step to step: nanochat's schedules (scripts/base_train.py) and a cosine for the
// plain AdamW run. Pure functions: iteration counts from 0, N = num_iterations. Iterations from N
// on keep the values of N.
#pragma once

#include <cstdint>

#include "framework/config/config.h"

namespace heddle {

// Factor on every learning rate, in [final_lr_frac, 1] after the warmup, which rises as
// (iteration + 1) / warmup_steps.
//   warmdown: 1, then linear to final_lr_frac over the last round(warmdown_ratio * N) steps.
//   cosine:   half a cosine from 1 to final_lr_frac between the warmup and N.
double lr_multiplier(const OptimConfig& config, int64_t num_iterations, int64_t iteration);

// muon_momentum_start -> muon_momentum over muon_momentum_warmup_steps, then muon_momentum, then
// linear to muon_momentum_final over the warmdown. A run shorter than the warmup only rises.
double muon_momentum(const OptimConfig& config, int64_t num_iterations, int64_t iteration);

// weight_decay * (1 + cos(pi * iteration / N)) / 2
double muon_weight_decay(const OptimConfig& config, int64_t num_iterations, int64_t iteration);

// nanochat's rules for another batch size or horizon than those of its depth-12 reference, with B
// the tokens of a step, B_ref = 2^19, and D the training horizon in tokens: rates times
// sqrt(B / B_ref), weight decay times sqrt(B / B_ref) * D_ref / D (arXiv 2405.13698). Horizons are
// a fixed number of tokens per scaling parameter (block matrices and lm_head), so D_ref / D is the
// ratio of those counts.
struct BatchScaling {
  double lr = 1.0;
  double weight_decay = 1.0;
};
BatchScaling batch_scaling(int64_t total_batch_size, int64_t scaling_params,
                           int64_t reference_scaling_params);

}  // namespace heddle
