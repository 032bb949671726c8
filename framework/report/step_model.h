// Predicted time of one optimizer step. Computation follows FLOP counts, collectives follow
// collective.h, and buckets of gradients and parameters are laid beside backward and forward the
// way the trainer does it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/model/params.h"
#include "framework/model/spec.h"
#include "framework/optim/ownership.h"
#include "framework/report/collective.h"
#include "framework/report/device_spec.h"

namespace heddle {

// A stretch of the model in the order of forward: the embedding, one block each, the head.
struct Segment {
  double elements = 0;  // parameters
  double flops = 0;     // of forward and backward, per token, that are computed
};
// Elements add up to the model's parameters. Flops are those of flops_per_token() with another
// attention: pairs that a query sees, and the scores that backward computes again.
std::vector<Segment> model_segments(const ModelSpec& spec, const ParamLayout& layout);

inline constexpr ShardLevel kShardLevels[] = {ShardLevel::kNone, ShardLevel::kOptimizer,
                                              ShardLevel::kGradients};
std::string_view shard_name(ShardLevel level);  // as dist.shard spells it

// What one reduce-scatter, and one all-gather, moves. `closes` counts segments: backward is done
// with the bucket after that one, and forward reads it first there.
struct ExchangeBucket {
  double bytes = 0;    // fp32
  double largest = 0;  // of them, what one rank owns
  size_t closes = 0;
};
std::vector<ExchangeBucket> exchange_buckets(const Ownership& ownership);

// The slowest rank's share of a step.
struct StepLoad {
  std::vector<Segment> segments;
  std::vector<ExchangeBucket> buckets;  // in the order in which backward closes them
  double tokens = 0;
  int64_t micro_steps = 1;
  double muon_flops = 0;
  double adamw_elements = 0;
  double norm_elements = 0;  // gradients that it reads for the norm
  ShardLevel level = ShardLevel::kNone;
  bool overlap = true;  // false: every collective waits for all of the computation before it
  int64_t threads = 1;  // shared_host only
};

// Seconds. The exposed parts are what collectives add to the computation.
struct StepTime {
  double forward = 0, backward = 0;
  double optimizer = 0;
  double muon = 0;                        // of it
  double reduce = 0, reduce_exposed = 0;  // of gradients
  double gather = 0, gather_exposed = 0;  // of parameters
  double compute() const { return forward + backward + optimizer; }
  double total() const { return compute() + reduce_exposed + gather_exposed; }
  double communication() const { return reduce + gather; }
  // Share of the communication that costs no time; 0 when there is none.
  double hidden_share() const;
};

StepTime predict_step(const DeviceSpec& device, const Topology& topology, const StepLoad& load);

// FLOP/s that products reach on one rank at most: its device, or its threads' part of the host,
// which ranks divide when there are more threads than processors.
double rank_peak_flops(const DeviceSpec& device, const Topology& topology, int64_t threads);

}  // namespace heddle
