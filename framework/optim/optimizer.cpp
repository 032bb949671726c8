#include "framework/optim/optimizer.h"

#include <cmath>
#include <utility>

#include "framework/optim/muon.h"
#include "framework/optim/schedules.h"

namespace heddle {
namespace {

DeviceBuffer allocate(Device& device, int64_t elements, const char* what) {
  if (elements == 0) return nullptr;
  return device.allocate(static_cast<size_t>(elements) * sizeof(float), what);
}

float* f32(const DeviceBuffer& buffer) {
  return static_cast<float*>(buffer.get());
}

}  // namespace

Optimizer::Optimizer(const OptimConfig& config, const ParamLayout& layout, int64_t num_iterations,
                     int64_t total_batch_size, Device& device)
    : Optimizer(config, plan_optimizer(config, layout, total_batch_size), num_iterations, device) {}

Optimizer::Optimizer(const OptimConfig& config, OptimPlan plan, int64_t num_iterations,
                     Device& device)
    : config_(config),
      num_iterations_(num_iterations),
      device_(device),
      plan_(std::move(plan)),
      mean_(allocate(device, plan_.adamw_size, "AdamW means")),
      square_(allocate(device, plan_.adamw_size, "AdamW squares")),
      momentum_(allocate(device, plan_.momentum_size, "Muon momentum")),
      second_(allocate(device, plan_.second_size, "Muon second moments")),
      scratch_(allocate(
          device, plan_.scratch_bytes(device.ops().workers()) / static_cast<int64_t>(sizeof(float)),
          "Muon scratch")) {}

StepValues Optimizer::values(int64_t iteration) const {
  return {lr_multiplier(config_, num_iterations_, iteration),
          muon_momentum(config_, num_iterations_, iteration),
          muon_weight_decay(config_, num_iterations_, iteration) * plan_.weight_decay_scale};
}

float Optimizer::clipped_scale(float grad_scale, double norm) const {
  if (config_.grad_clip <= 0.0 || !(norm > config_.grad_clip)) return grad_scale;
  return static_cast<float>(grad_scale * (config_.grad_clip / norm));
}

void Optimizer::step(int64_t iteration, float* params, const float* grads, float grad_scale) {
  step_adamw(iteration, params, grads, grad_scale);
  step_muon(iteration, params, grads, grad_scale, [] {});
}

void Optimizer::step_adamw(int64_t iteration, float* params, const float* grads,
                           float grad_scale) {
  const StepInput in = {iteration, values(iteration), params, grads, grad_scale};
  for (const AdamWTask& task : plan_.adamw) update(task, in);
}

void Optimizer::step_muon(int64_t iteration, float* params, const float* grads, float grad_scale,
                          const std::function<void()>& between) {
  const StepInput in = {iteration, values(iteration), params, grads, grad_scale};
  const struct {
    Optimizer* self;
    const StepInput* in;
    const std::function<void()>* between;
  } call{this, &in, &between};
  // One pointer fits into std::function without an allocation. Worker 0 is the calling thread.
  device_.ops().run_independent(static_cast<int64_t>(plan_.muon.size()),
                                [&call](int64_t i, int worker) {
                                  call.self->update(call.self->plan_.muon[i], worker, *call.in);
                                  if (worker == 0) (*call.between)();
                                });
}

void Optimizer::update(const AdamWTask& task, const StepInput& in) {
  AdamWStep step;
  step.lr = static_cast<float>(task.group.lr * in.values.lr_multiplier);
  step.beta1 = static_cast<float>(task.group.beta1);
  step.beta2 = static_cast<float>(task.group.beta2);
  step.eps = static_cast<float>(task.group.eps);
  step.weight_decay = static_cast<float>(task.group.weight_decay);
  step.step = in.iteration + 1;
  step.grad_scale = in.grad_scale;
  device_.ops().adamw(step, in.grads + task.grad, in.params + task.param.offset + task.begin,
                      f32(mean_) + task.state, f32(square_) + task.state, task.count);
}

void Optimizer::update(const MuonTask& task, int worker, const StepInput& in) {
  MuonStep step;
  step.lr = static_cast<float>(task.lr * in.values.lr_multiplier);
  step.momentum = static_cast<float>(in.values.muon_momentum);
  step.weight_decay = static_cast<float>(in.values.muon_weight_decay);
  step.grad_scale = in.grad_scale;
  float* base = f32(scratch_) + worker * 2 * (plan_.matrix_scratch + plan_.gram_scratch);
  float* grams = base + 2 * plan_.matrix_scratch;
  const MuonScratch scratch = {base, base + plan_.matrix_scratch, grams,
                               grams + plan_.gram_scratch};
  muon_update(device_.ops(), step, task.param.rows, task.param.cols, in.grads + task.grad,
              in.params + task.param.offset, f32(momentum_) + task.momentum, f32(second_) + task.second,
              scratch);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> tensors;
  for (const AdamWTask& task : plan_.adamw) {
    for (const auto& [prefix, buffer] : {std::pair{"adamw.m/", &mean_}, {"adamw.v/", &square_}}) {
      tensors.push_back({prefix + task.param.name, task.param.shape, f32(*buffer) + task.state,
                         task.begin, task.count});
    }
  }
  for (const MuonTask& task : plan_.muon) {
    const std::vector<int64_t> second = task.per_row() ? std::vector<int64_t>{task.param.rows, 1}
                                                       : std::vector<int64_t>{1, task.param.cols};
    tensors.push_back({"muon.momentum/" + task.param.name, task.param.shape,
                       f32(momentum_) + task.momentum, 0, task.param.size()});
    tensors.push_back({"muon.second/" + task.param.name, second, f32(second_) + task.second, 0,
                       task.second_size()});
  }
  return tensors;
}

}  // namespace heddle
