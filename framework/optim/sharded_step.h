// The distributed part of an optimizer step: gradients are reduced bucket by bucket while backward
// goes on, every rank updates its part (ownership.h), and parameters are gathered while whatever
// comes next goes on. docs/distributed.md has the steps, byte counts and memory of each level.
//
//   step.begin();
//   for each micro-step:  step.begin_micro_step(last); sum = model.forward_backward(...);
//                         step.end_micro_step(sum);
//   totals = step.reduce(signal);                   // the same on all ranks
//   step.update(iteration, scale);                  // parameters arrive as forward asks for them
//
// All ranks make the same calls, but for the number of micro-steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/model/gpt.h"
#include "framework/optim/optimizer.h"
#include "framework/optim/ownership.h"

namespace heddle {

struct ShardOptions {
  ShardLevel level = ShardLevel::kNone;
  // train.reproducible: one sequence a micro-step, gradients and losses added up exactly, so that
  // the result does not depend on their order (Ops::add_exact). Not with kGradients.
  bool reproducible = false;
  int64_t micro_steps = 1;  // of the rank that has the most
};

// Sums over all ranks.
struct StepTotals {
  double nats = 0;
  int64_t tokens = 0;
  int signal = 0;           // the largest that a rank brought
  double grad_squares = 0;  // of the summed gradient
};

// Gradient memory of a rank by kind. With kGradients: its shard and the buckets under way.
std::vector<MemoryItem> plan_gradient_memory(const ShardOptions& options,
                                             const Ownership& ownership, int rank);

// Payload bytes that `rank` hands to its peers in one step: what CommCounters counts.
int64_t step_bytes(const ShardOptions& options, const Ownership& ownership, int rank);

class ShardedStep : public PassHooks {
 public:
  // The model has ownership.layout() and, but for kGradients, gradients of its own; the optimizer's
  // plan is that of the level and rank. All outlive the step. Hooks itself into the model.
  ShardedStep(const ShardOptions& options, const Ownership& ownership, Gpt& model,
              Optimizer& optimizer, Communicator& comm);
  ~ShardedStep() override;
  ShardedStep(const ShardedStep&) = delete;
  ShardedStep& operator=(const ShardedStep&) = delete;

  ShardLevel level() const { return options_.level; }

  void begin();
  // `last`: of this rank in this step.
  void begin_micro_step(bool last);
  void end_micro_step(const LossSum& sum);
  StepTotals reduce(int signal);
  void update(int64_t iteration, float grad_scale);
  // For whoever reads parameters other than by a pass.
  void wait_parameters();

  void before_forward(int64_t part) override;
  void before_backward(int64_t part) override;
  void after_backward(int64_t part) override;
  void poll() override { comm_.poll(); }
  bool idle() const override { return comm_.world_size() == 1; }

 private:
  // Room for a bucket's gradients of one micro-step.
  struct Slot {
    float* data = nullptr;
    Work work;
    int bucket = -1;     // being reduced here
    bool first = false;  // in the first micro-step
  };

  void plan_slots();
  void plan_norm();
  void open_bucket(size_t b);
  void close_bucket(size_t b);
  void drain(Slot& slot);
  void join_empty_micro_step();
  void reduce_exact();
  const float* gradients() const;
  void start_gather(size_t b);
  std::span<float> bucket_span(float* base, size_t b) const;
  StepTotals gather_totals(int signal);

  const ShardOptions options_;
  const Ownership& own_;
  Gpt& model_;
  Optimizer& optimizer_;
  Communicator& comm_;
  Ops& ops_;

  int64_t micro_step_ = 0;
  bool last_ = false;
  LossSum loss_;
  // kGradients
  DeviceBuffer shard_, slot_memory_;
  std::vector<Slot> slots_;
  std::vector<size_t> slot_of_;  // per bucket
  // reproducible
  DeviceBuffer high_, low_;
  // The gathering of losses, signals and norm pieces.
  struct NormPart {
    int64_t offset = 0, count = 0;  // of the own gradients
    size_t place = 0;               // in gathered_
  };
  std::vector<NormPart> norm_parts_;
  std::vector<std::span<const float>> norm_tensors_;
  std::vector<double> norm_sums_;
  std::vector<size_t> norm_places_;  // in gathered_, in the order of the sum
  std::vector<double> gathered_;
  std::vector<int64_t> gather_counts_;
  // Parameters under way.
  std::vector<Work> parameters_;  // per bucket
  std::vector<size_t> gather_first_, gather_last_;
  std::function<void()> poll_;
};

}  // namespace heddle
