#include "framework/optim/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"
#include "tests/unit/framework/optim/reference.h"

namespace heddle {
namespace {

using testing::AdamWReference;
using testing::MuonReference;
using testing::Vec;

ModelSpec small_spec() {
  ModelConfig c;
  c.n_layer = 2;
  c.n_head = 4;
  c.n_kv_head = 2;
  c.n_embd = 64;
  c.sequence_len = 16;
  c.vocab_size = 70;
  return resolve_model(c, 0);
}

// Parameters and gradients of a layout on a device, with zeros between tensors.
class Problem {
 public:
  explicit Problem(const ParamLayout& layout)
      : layout_(layout), params_(layout.total()), grads_(layout.total()) {
    fill("params", 0.1f, &params_);
    memory_ = device->allocate(2 * bytes(), "test");
    device->upload(params(), params_.data(), bytes());
    next_gradient(0);
  }

  void next_gradient(int64_t step) {
    fill("grad" + std::to_string(step), 0.02f, &grads_);
    device->upload(grads(), grads_.data(), bytes());
  }

  float* params() const { return static_cast<float*>(memory_.get()); }
  float* grads() const { return params() + layout_.total(); }
  std::vector<float> download() const {
    std::vector<float> out(params_.size());
    device->download(out.data(), params(), bytes());
    return out;
  }
  Vec part(const std::vector<float>& flat, const ParamInfo& p) const {
    return {flat.begin() + p.offset, flat.begin() + p.offset + p.size()};
  }
  const std::vector<float>& first_params() const { return params_; }
  const std::vector<float>& host_grads() const { return grads_; }

  std::unique_ptr<Device> device = make_cpu_device();

 private:
  size_t bytes() const { return params_.size() * sizeof(float); }
  void fill(const std::string& stream, float scale, std::vector<float>* flat) {
    for (const ParamInfo& p : layout_.params()) {
      Rng rng(5, stream + p.name);
      for (int64_t i = 0; i < p.size(); ++i) (*flat)[p.offset + i] = scale * rng.normal();
    }
  }

  const ParamLayout& layout_;
  std::vector<float> params_, grads_;
  DeviceBuffer memory_;
};

double relative_way(const Vec& got, const Vec& want, const Vec& start) {
  double difference = 0, way = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    way += (want[i] - start[i]) * (want[i] - start[i]);
  }
  return std::sqrt(difference / way);
}

// Three steps of `config` against the fp64 equations, tensor by tensor.
void expect_reference_steps(const OptimConfig& config) {
  const ParamLayout layout(small_spec());
  Problem problem(layout);
  const int64_t steps = 3, total = 50;
  const float grad_scale = 0.25f;
  Optimizer optimizer(config, layout, total, 2048, *problem.device);
  std::map<std::string, Vec> want;
  std::map<std::string, AdamWReference> adamw;
  std::map<std::string, MuonReference> muon;
  for (const AdamWTask& t : optimizer.plan().adamw) {
    const AdamWGroup& g = t.group;
    adamw[t.param.name] = {g.lr, g.beta1, g.beta2, g.eps, g.weight_decay};
  }
  for (const MuonTask& t : optimizer.plan().muon) {
    muon.emplace(t.param.name, MuonReference{t.param.rows, t.param.cols});
  }
  for (const ParamInfo& p : layout.params()) {
    want[p.name] = problem.part(problem.first_params(), p);
  }
  for (int64_t it = 0; it < steps; ++it) {
    problem.next_gradient(it);
    const StepValues now = optimizer.values(it);
    optimizer.step(it, problem.params(), problem.grads(), grad_scale);
    for (const ParamInfo& p : layout.params()) {
      Vec grad = problem.part(problem.host_grads(), p);
      for (double& g : grad) g *= grad_scale;
      if (adamw.count(p.name) != 0) {
        adamw[p.name].step(grad, now.lr_multiplier, &want[p.name]);
      } else {
        muon.at(p.name).step(grad, now.muon_momentum, config.matrix_lr * now.lr_multiplier,
                             now.muon_weight_decay, &want[p.name]);
      }
    }
  }
  const std::vector<float> got = problem.download();
  for (const ParamInfo& p : layout.params()) {
    const Vec start = problem.part(problem.first_params(), p);
    EXPECT_LE(relative_way(problem.part(got, p), want[p.name], start), 5e-5) << p.name;
  }
}

TEST(Optimizer, MuonRunAsInDoublePrecision) {
  expect_reference_steps(OptimConfig{});
}

TEST(Optimizer, AdamWRunAsInDoublePrecision) {
  OptimConfig config;
  config.kind = "adamw";
  config.warmup_steps = 2;
  expect_reference_steps(config);
}

TEST(Optimizer, SameBitsForEveryNumberOfThreads) {
  const ParamLayout layout(small_spec());
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Problem problem(layout);
    Optimizer optimizer(OptimConfig{}, layout, 10, 2048, *problem.device);
    for (int64_t it = 0; it < 4; ++it) {
      problem.next_gradient(it);
      optimizer.step(it, problem.params(), problem.grads(), 1.0f);
    }
    results.push_back(problem.download());
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Optimizer, StateContinuesToTheBit) {
  const ParamLayout layout(small_spec());
  for (const char* kind : {"muon", "adamw"}) {
    OptimConfig config;
    config.kind = kind;
    Problem whole(layout), resumed(layout);
    Optimizer a(config, layout, 10, 2048, *whole.device);
    for (int64_t it = 0; it < 2; ++it) {
      whole.next_gradient(it);
      a.step(it, whole.params(), whole.grads(), 1.0f);
    }
    Optimizer b(config, layout, 10, 2048, *resumed.device);
    const std::vector<float> halfway = whole.download();
    resumed.device->upload(resumed.params(), halfway.data(), halfway.size() * sizeof(float));
    const auto from = a.state(), to = b.state();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].name, to[i].name);
      ASSERT_EQ(from[i].shape, to[i].shape);
      int64_t n = 1;
      for (const int64_t d : from[i].shape) n *= d;
      std::vector<float> host(static_cast<size_t>(n));
      whole.device->download(host.data(), from[i].data, host.size() * sizeof(float));
      resumed.device->upload(to[i].data, host.data(), host.size() * sizeof(float));
    }
    for (auto* run : {&whole, &resumed}) {
      run->next_gradient(2);
      (run == &whole ? a : b).step(2, run->params(), run->grads(), 1.0f);
    }
    EXPECT_EQ(whole.download(), resumed.download()) << kind;
  }
}

TEST(Optimizer, StateTensorsHaveCheckpointNames) {
  const ParamLayout layout(small_spec());
  const auto device = make_cpu_device();
  const Optimizer optimizer(OptimConfig{}, layout, 10, 2048, *device);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const StateTensor& t : optimizer.state()) {
    EXPECT_TRUE(shapes.emplace(t.name, t.shape).second) << t.name << " twice";
    EXPECT_NE(t.data, nullptr);
  }
  EXPECT_EQ(shapes.size(), 2 * layout.params().size());
  EXPECT_EQ(shapes.at("adamw.m/lm_head.weight"), (std::vector<int64_t>{128, 64}));
  EXPECT_EQ(shapes.at("adamw.v/resid_lambdas"), (std::vector<int64_t>{2}));
  const std::string fc = "transformer.h.0.mlp.c_fc.weight";
  EXPECT_EQ(shapes.at("muon.momentum/" + fc), (std::vector<int64_t>{256, 64}));
  EXPECT_EQ(shapes.at("muon.second/" + fc), (std::vector<int64_t>{256, 1}));
  EXPECT_EQ(shapes.at("muon.second/transformer.h.0.mlp.c_proj.weight"),
            (std::vector<int64_t>{1, 256}));
}

TEST(Optimizer, Clipping) {
  const ParamLayout layout(small_spec());
  Problem problem(layout);
  OptimConfig config;
  config.grad_clip = 0.5;
  Optimizer clipping(config, layout, 10, 2048, *problem.device);
  double sum = 0;
  for (const float g : problem.host_grads()) sum += static_cast<double>(g) * g;
  const double norm = 0.25 * std::sqrt(sum);
  ASSERT_GT(norm, 0.5);
  const float cut = clipping.clipped_scale(0.25f, norm);
  EXPECT_NEAR(static_cast<double>(cut) * std::sqrt(sum), 0.5, 1e-6);
  EXPECT_EQ(clipping.clipped_scale(0.25f, 0.4), 0.25f);
  Optimizer plain(OptimConfig{}, layout, 10, 2048, *problem.device);
  EXPECT_EQ(plain.clipped_scale(0.25f, norm), 0.25f);
}

TEST(Optimizer, ValuesForLogs) {
  const ParamLayout layout(small_spec());
  const auto device = make_cpu_device();
  const Optimizer optimizer(OptimConfig{}, layout, 100, 2048, *device);
  EXPECT_EQ(optimizer.values(0).lr_multiplier, 1.0 / 40);
  EXPECT_EQ(optimizer.values(0).muon_momentum, 0.85);
  EXPECT_EQ(optimizer.values(0).muon_weight_decay, 0.28);
}

}  // namespace
}  // namespace heddle
