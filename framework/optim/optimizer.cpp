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

void Optimizer::step_adamw(int64_t iteration, float* params, const float* grads, float grad_scale) {
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
              in.params + task.param.offset, f32(momentum_) + task.momentum,
              f32(second_) + task.second, scratch);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> tensors;
  for (const AdamWTask& t : plan_.adamw) {
    for (float* data : {f32(mean_) + t.state, f32(square_) + t.state}) {
      tensors.push_back({"", {}, data, t.begin, t.count});
    }
  }
  for (const MuonTask& t : plan_.muon) {
    tensors.push_back({"", {}, f32(momentum_) + t.momentum, 0, t.param.size()});
    tensors.push_back({"", {}, f32(second_) + t.second, 0, t.second_size()});
  }
  const std::vector<StateShape> shapes = state_shapes(plan_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = shapes[i].name;
    tensors[i].shape = shapes[i].shape;
  }
  return tensors;
}

std::vector<StateShape> state_shapes(const OptimPlan& plan) {
  std::vector<StateShape> shapes;
  for (const AdamWTask& t : plan.adamw) {
    shapes.push_back({"adamw.m/" + t.param.name, t.param.shape});
    shapes.push_back({"adamw.v/" + t.param.name, t.param.shape});
  }
  for (const MuonTask& t : plan.muon) {
    const std::vector<int64_t> second =
        t.per_row() ? std::vector<int64_t>{t.param.rows, 1} : std::vector<int64_t>{1, t.param.cols};
    shapes.push_back({"muon.momentum/" + t.param.name, t.param.shape});
    shapes.push_back({"muon.second/" + t.param.name, second});
  }
  return shapes;
}

}  // namespace heddle
