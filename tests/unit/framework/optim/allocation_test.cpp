// Steady optimizer steps call operator new nowhere.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"
#include "framework/optim/optimizer.h"
#include "tests/unit/framework/attention/allocations.h"

namespace heddle {
namespace {

TEST(Optimizer, SteadyStepsAllocateNothing) {
  set_num_threads(2);
  ModelConfig model;
  model.vocab_size = 100;
  const ParamLayout layout(resolve_model(model, 0));
  const auto device = make_cpu_device();
  const size_t bytes = static_cast<size_t>(layout.total()) * sizeof(float);
  const DeviceBuffer params = device->allocate(bytes, "test"),
                     grads = device->allocate(bytes, "test");
  std::vector<float> host(static_cast<size_t>(layout.total()));
  for (const ParamInfo& p : layout.params()) {
    Rng rng(1, p.name);
    for (int64_t i = 0; i < p.size(); ++i) host[p.offset + i] = 0.1f * rng.normal();
  }
  device->upload(params.get(), host.data(), bytes);
  device->upload(grads.get(), host.data(), bytes);
  Optimizer optimizer(OptimConfig{}, layout, 100, 2048, *device);
  const auto step = [&](int64_t it) {
    const auto* g = static_cast<const float*>(grads.get());
    const float scale = optimizer.clipped_scale(0.5f, std::sqrt(device->ops().sum_squares(g, layout.total())));
    optimizer.step(it, static_cast<float*>(params.get()), g, scale);
  };
  step(0);
  step(1);
  const auto before = test::allocations();
  step(2);
  step(3);
  EXPECT_EQ(test::allocations(), before);
  set_num_threads(0);
}

}  // namespace
}  // namespace heddle
