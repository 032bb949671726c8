#include "framework/optim/optimizer.h"

#include <cmath>

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
    : config_(config),
      num_iterations_(num_iterations),
      param_elements_(layout.total()),
      device_(device),
      plan_(plan_optimizer(config, layout, total_batch_size)),
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

double Optimizer::grad_norm(const float* grads, float grad_scale) {
  return std::sqrt(device_.ops().sum_squares(grads, param_elements_)) * std::abs(grad_scale);
}

float Optimizer::clipped_scale(float grad_scale, double norm) const {
  if (config_.grad_clip <= 0.0 || !(norm > config_.grad_clip)) return grad_scale;
  return static_cast<float>(grad_scale * (config_.grad_clip / norm));
}

void Optimizer::step(int64_t iteration, float* params, const float* grads, float grad_scale) {
  const StepInput in = {iteration, values(iteration), params, grads, grad_scale};
  for (const AdamWTask& task : plan_.adamw) step_adamw(task, in);
  // Two pointers fit into std::function without an allocation.
  device_.ops().run_independent(
      static_cast<int64_t>(plan_.muon.size()),
      [this, &in](int64_t i, int worker) { step_muon(plan_.muon[i], worker, in); });
}

void Optimizer::step_adamw(const AdamWTask& task, const StepInput& in) {
  AdamWStep step;
  step.lr = static_cast<float>(task.group.lr * in.values.lr_multiplier);
  step.beta1 = static_cast<float>(task.group.beta1);
  step.beta2 = static_cast<float>(task.group.beta2);
  step.eps = static_cast<float>(task.group.eps);
  step.weight_decay = static_cast<float>(task.group.weight_decay);
  step.step = in.iteration + 1;
  step.grad_scale = in.grad_scale;
  const int64_t offset = task.param.offset;
  device_.ops().adamw(step, in.grads + offset, in.params + offset, f32(mean_) + task.state,
                      f32(square_) + task.state, task.param.size());
}

void Optimizer::step_muon(const MuonTask& task, int worker, const StepInput& in) {
  MuonStep step;
  step.lr = static_cast<float>(task.lr * in.values.lr_multiplier);
  step.momentum = static_cast<float>(in.values.muon_momentum);
  step.weight_decay = static_cast<float>(in.values.muon_weight_decay);
  step.grad_scale = in.grad_scale;
  float* base = f32(scratch_) + worker * 2 * (plan_.matrix_scratch + plan_.gram_scratch);
  float* grams = base + 2 * plan_.matrix_scratch;
  const MuonScratch scratch = {base, base + plan_.matrix_scratch, grams,
                               grams + plan_.gram_scratch};
  const int64_t offset = task.param.offset;
  muon_update(device_.ops(), step, task.param.rows, task.param.cols, in.grads + offset,
              in.params + offset, f32(momentum_) + task.momentum, f32(second_) + task.second,
              scratch);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> tensors;
  for (const AdamWTask& task : plan_.adamw) {
    tensors.push_back({"adamw.m/" + task.param.name, task.param.shape, f32(mean_) + task.state});
    tensors.push_back({"adamw.v/" + task.param.name, task.param.shape, f32(square_) + task.state});
  }
  for (const MuonTask& task : plan_.muon) {
    const std::vector<int64_t> second = task.per_row() ? std::vector<int64_t>{task.param.rows, 1}
                                                       : std::vector<int64_t>{1, task.param.cols};
    tensors.push_back(
        {"muon.momentum/" + task.param.name, task.param.shape, f32(momentum_) + task.momentum});
    tensors.push_back({"muon.second/" + task.param.name, second, f32(second_) + task.second});
  }
  return tensors;
}

}  // namespace heddle
