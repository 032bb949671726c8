// One update of all parameters: Muon for the matrices inside blocks and AdamW for the rest
// (optim.kind muon, nanochat's), or AdamW for all. Parameters and gradients are flat buffers of one
// ParamLayout on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/device/device.h"
#include "framework/model/params.h"
#include "framework/optim/plan.h"

namespace heddle {

// A tensor of the optimizer's state on the device, as checkpoints name it, or the elements of it
// that this rank has:
//   adamw.m/NAME, adamw.v/NAME            mean and square, shaped as the parameter
//   muon.momentum/NAME                    shaped as the parameter
//   muon.second/NAME                      (rows, 1) or (1, cols)
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  float* data = nullptr;
  int64_t begin = 0, count = 0;  // elements at data
};

// Names and shapes of all tensors of the state of a plan that has them whole.
struct StateShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<StateShape> state_shapes(const OptimPlan& plan);

// What a step uses, for logs.
struct StepValues {
  double lr_multiplier = 1.0;
  double muon_momentum = 0.0;
  double muon_weight_decay = 0.0;
};

class Optimizer {
 public:
  // num_iterations: length of the run, which the schedules refer to. total_batch_size: tokens of a
  // step on all ranks. State begins as zeros. `device` must outlive the optimizer, and its
  // ops().workers() must not grow, since scratch is planned here.
  Optimizer(const OptimConfig& config, const ParamLayout& layout, int64_t num_iterations,
            int64_t total_batch_size, Device& device);
  // Updates what `plan` names.
  Optimizer(const OptimConfig& config, OptimPlan plan, int64_t num_iterations, Device& device);

  // Values of an iteration, counted from 0.
  StepValues values(int64_t iteration) const;

  // grad_scale, lowered so that a gradient of norm `norm` is cut to optim.grad_clip. A norm that is
  // not finite is the caller's to refuse.
  float clipped_scale(float grad_scale, double norm) const;

  // params <- update with grad_scale * grads; grads is what the plan's offsets count from. The
  // state depends on the number of steps only through `iteration`, so a resumed run continues by
  // passing the next one. Same bits for every number of threads. Allocates nothing.
  void step(int64_t iteration, float* params, const float* grads, float grad_scale);
  // Its two halves: AdamW's parameters, then Muon's. `between` is called on the calling thread
  // every now and then.
  void step_adamw(int64_t iteration, float* params, const float* grads, float grad_scale);
  void step_muon(int64_t iteration, float* params, const float* grads, float grad_scale,
                 const std::function<void()>& between);

  // All state in a fixed order.
  std::vector<StateTensor> state() const;

  const OptimPlan& plan() const { return plan_; }
  const OptimConfig& config() const { return config_; }

 private:
  void place(float* params, const float* grads);
  void update(const AdamWTask& task, size_t i);
  void update(const MuonTask& task, size_t i, int worker);

  OptimConfig config_;
  int64_t num_iterations_;
  Device& device_;
  OptimPlan plan_;
  DeviceBuffer mean_, square_;      // AdamW
  DeviceBuffer momentum_, second_;  // Muon
  DeviceBuffer scratch_;            // Muon, per worker: x, spare, gram, poly
  // What changes from step to step, per task: here, and where operations read it.
  std::vector<AdamWValues> adamw_values_;
  std::vector<MuonValues> muon_values_;
  DeviceBuffer device_adamw_values_, device_muon_values_;
  float* params_ = nullptr;
  const float* grads_ = nullptr;
  std::unique_ptr<Replay> adamw_replay_, muon_replay_;  // nullptr: the device does not record
};

}  // namespace heddle
