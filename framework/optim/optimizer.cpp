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
          "Muon scratch")),
      adamw_values_(plan_.adamw.size()),
      muon_values_(plan_.muon.size()),
      device_adamw_values_(
          device.allocate(adamw_values_.size() * sizeof(AdamWValues), "AdamW rates")),
      device_muon_values_(device.allocate(muon_values_.size() * sizeof(MuonValues), "Muon rates")) {
}

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
  place(params, grads);
  const StepValues now = values(iteration);
  for (size_t i = 0; i < plan_.adamw.size(); ++i) {
    const AdamWGroup& group = plan_.adamw[i].group;
    AdamWStep step;
    step.lr = static_cast<float>(group.lr * now.lr_multiplier);
    step.beta1 = static_cast<float>(group.beta1);
    step.beta2 = static_cast<float>(group.beta2);
    step.eps = static_cast<float>(group.eps);
    step.weight_decay = static_cast<float>(group.weight_decay);
    step.step = iteration + 1;
    step.grad_scale = grad_scale;
    adamw_values_[i] = step.values();
  }
  device_.upload(device_adamw_values_.get(), adamw_values_.data(),
                 adamw_values_.size() * sizeof(AdamWValues));
  enqueue(adamw_replay_.get(), [this] {
    for (size_t i = 0; i < plan_.adamw.size(); ++i) update(plan_.adamw[i], i);
  });
}

void Optimizer::step_muon(int64_t iteration, float* params, const float* grads, float grad_scale,
                          const std::function<void()>& between) {
  place(params, grads);
  const StepValues now = values(iteration);
  for (size_t i = 0; i < plan_.muon.size(); ++i) {
    muon_values_[i] = {static_cast<float>(plan_.muon[i].lr * now.lr_multiplier),
                       static_cast<float>(now.muon_momentum),
                       static_cast<float>(now.muon_weight_decay), grad_scale};
  }
  device_.upload(device_muon_values_.get(), muon_values_.data(),
                 muon_values_.size() * sizeof(MuonValues));
  const struct {
    Optimizer* self;
    const std::function<void()>* between;
  } call{this, &between};
  // One pointer fits into std::function without an allocation. Worker 0 is the calling thread.
  enqueue(muon_replay_.get(), [&call] {
    call.self->device_.ops().run_independent(
        static_cast<int64_t>(call.self->plan_.muon.size()), [&call](int64_t i, int worker) {
          call.self->update(call.self->plan_.muon[static_cast<size_t>(i)], static_cast<size_t>(i),
                            worker);
          if (worker == 0) (*call.between)();
        });
  });
}

// Where a step works. A record knows the old places only.
void Optimizer::place(float* params, const float* grads) {
  if (params == params_ && grads == grads_) return;
  params_ = params;
  grads_ = grads;
  adamw_replay_ = device_.make_replay();
  muon_replay_ = device_.make_replay();
}

void Optimizer::update(const AdamWTask& task, size_t i) {
  device_.ops().adamw(static_cast<const AdamWValues*>(device_adamw_values_.get()) + i,
                      grads_ + task.grad, params_ + task.param.offset + task.begin,
                      f32(mean_) + task.state, f32(square_) + task.state, task.count);
}

void Optimizer::update(const MuonTask& task, size_t i, int worker) {
  float* base = f32(scratch_) + worker * 2 * (plan_.matrix_scratch + plan_.gram_scratch);
  float* grams = base + 2 * plan_.matrix_scratch;
  const MuonScratch scratch = {base, base + plan_.matrix_scratch, grams,
                               grams + plan_.gram_scratch};
  muon_update(device_.ops(), static_cast<const MuonValues*>(device_muon_values_.get()) + i,
              task.param.rows, task.param.cols, grads_ + task.grad, params_ + task.param.offset,
              f32(momentum_) + task.momentum, f32(second_) + task.second, scratch);
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
