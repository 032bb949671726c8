// Which parameter is updated how, and where its state lies. Computed from the configuration and the
// layout alone, so that memory can be told before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/config/config.h"
#include "framework/model/params.h"
#include "framework/optim/ownership.h"

namespace heddle {

// Rates before the schedule.
struct AdamWGroup {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

// The elements [begin, begin + count) of a parameter.
struct AdamWTask {
  ParamInfo param;
  AdamWGroup group;
  int64_t begin = 0, count = 0;
  int64_t grad = 0;   // offset of their gradient, elements
  int64_t state = 0;  // offset of their mean and of their square in their buffers, elements
};

// Multiply-adds of the polar iteration of a matrix.
double polar_cost(int64_t rows, int64_t cols);

struct MuonTask {
  ParamInfo param;
  double lr = 0;         // matrix_lr * sqrt(max(1, rows / cols))
  int64_t grad = 0;      // offset of its gradient, elements
  int64_t momentum = 0;  // offset of its momentum (rows * cols), elements
  int64_t second = 0;    // offset of its second moments (second_size()), elements

  // NorMuon keeps one value per row of a tall or square matrix, one per column of a wide one.
  bool per_row() const { return param.rows >= param.cols; }
  int64_t second_size() const { return per_row() ? param.rows : param.cols; }
  double cost() const { return polar_cost(param.rows, param.cols); }
};

struct OptimPlan {
  std::vector<AdamWTask> adamw;
  std::vector<MuonTask> muon;  // heaviest first
  // Elements of the state buffers.
  int64_t adamw_size = 0;  // of the mean, and of the square
  int64_t momentum_size = 0;
  int64_t second_size = 0;
  // Muon's scratch for one worker: two matrices and two Gram matrices of the largest sizes.
  int64_t matrix_scratch = 0;
  int64_t gram_scratch = 0;
  double weight_decay_scale = 1.0;  // of Muon's decay, from batch_scaling

  int64_t state_bytes() const;
  int64_t scratch_bytes(int workers) const;
};

// total_batch_size: tokens of a step on all ranks, used by optim.batch_scaling.
OptimPlan plan_optimizer(const OptimConfig& config, const ParamLayout& layout,
                         int64_t total_batch_size);
// What `rank` does at a level: all of it (none), or its own part. At the level `gradients` offsets
// of gradients count from the begin of the rank's shard, otherwise of the flat buffer.
OptimPlan plan_optimizer(const OptimConfig& config, const Ownership& ownership, ShardLevel level,
                         int rank, int64_t total_batch_size);

}  // namespace heddle
