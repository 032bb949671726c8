#include "framework/optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"
#include "framework/device/device.h"
#include "tests/unit/framework/optim/reference.h"

namespace heddle {
namespace {

using testing::MuonReference;
using testing::Vec;

Vec random(const char* name, int64_t n, double scale) {
  Rng rng(11, name);
  Vec x(static_cast<size_t>(n));
  for (double& v : x) v = static_cast<float>(scale * rng.normal());
  return x;
}

// Device memory of n floats.
struct Floats {
  Floats(Device& d, int64_t n)
      : device(d), size(n), memory(d.allocate(n * sizeof(float), "test")) {}
  Floats(Device& d, const Vec& x) : Floats(d, static_cast<int64_t>(x.size())) { set(x); }

  float* data() const { return static_cast<float*>(memory.get()); }
  void set(const Vec& x) {
    const std::vector<float> host(x.begin(), x.end());
    device.upload(data(), host.data(), host.size() * sizeof(float));
  }
  Vec get() const {
    std::vector<float> host(static_cast<size_t>(size));
    device.download(host.data(), data(), host.size() * sizeof(float));
    return {host.begin(), host.end()};
  }

  Device& device;
  int64_t size;
  DeviceBuffer memory;
};

struct Scratch {
  Scratch(Device& d, int64_t m, int64_t n)
      : x(d, m * n), spare(d, m * n), gram(d, side(m, n)), poly(d, side(m, n)) {}
  static int64_t side(int64_t m, int64_t n) { return std::min(m, n) * std::min(m, n); }
  MuonScratch pointers() const { return {x.data(), spare.data(), gram.data(), poly.data()}; }
  Floats x, spare, gram, poly;
};

double relative_error(const Vec& got, const Vec& want) {
  Vec difference(got);
  for (size_t i = 0; i < got.size(); ++i) difference[i] -= want[i];
  return testing::norm(difference) / testing::norm(want);
}

struct Shape {
  int64_t m, n;
};

class MuonTest : public ::testing::TestWithParam<Shape> {
 protected:
  std::unique_ptr<Device> device = make_cpu_device();
};

// Three steps, so that momentum and second moments matter. What is compared is the way that the
// parameters went, which is far smaller than they are.
TEST_P(MuonTest, ThreeStepsAsInDoublePrecision) {
  const auto [m, n] = GetParam();
  const double lr = 0.125, decay = 0.25, grad_scale = 0.5, mu[] = {0.85, 0.9, 0.95};
  MuonReference reference{m, n};
  const Vec start = random("p", m * n, 0.05);
  Vec want = start;
  Floats p(*device, start), momentum(*device, m * n), second(*device, std::max(m, n));
  const Scratch scratch(*device, m, n);
  MuonValues step;
  step.lr = static_cast<float>(lr * std::sqrt(std::max(1.0, static_cast<double>(m) / n)));
  step.weight_decay = decay;
  step.grad_scale = grad_scale;
  for (int i = 0; i < 3; ++i) {
    Vec grad = random(i == 0 ? "g0" : i == 1 ? "g1" : "g2", m * n, 0.01);
    const Floats device_grad(*device, grad);
    step.momentum = static_cast<float>(mu[i]);
    muon_update(device->ops(), &step, m, n, device_grad.data(), p.data(), momentum.data(),
                second.data(), scratch.pointers());
    for (double& g : grad) g *= grad_scale;
    reference.step(grad, mu[i], lr, decay, &want);
  }
  Vec way = p.get(), want_way = want;
  for (size_t i = 0; i < way.size(); ++i) {
    way[i] -= start[i];
    want_way[i] -= start[i];
  }
  EXPECT_LE(relative_error(way, want_way), 2e-5);
  EXPECT_LE(relative_error(momentum.get(), reference.momentum), 1e-6);
  EXPECT_LE(relative_error(second.get(), reference.second), 2e-5);
}

// Singular values of the result lie around 1 (0.87 at the interval's upper end): the mean diagonal
// of X^T X or X X^T is their mean square.
TEST_P(MuonTest, PolarFactor) {
  const auto [m, n] = GetParam();
  const int64_t side = std::min(m, n);
  Vec start = random("x", m * n, 1.0);
  const double scale = 1.0 / (1.01 * testing::norm(start));
  for (double& v : start) v *= scale;
  const Scratch s(*device, m, n);
  Floats(s.x).set(start);
  const Matrix polar =
      polar_express(device->ops(), matrix(s.x.data(), m, n), matrix(s.spare.data(), m, n),
                    matrix(s.gram.data(), side, side), matrix(s.poly.data(), side, side));
  const Vec u = (polar.data == s.x.data() ? s.x : s.spare).get();
  const Vec ut = testing::transposed(u, m, n);
  const Vec gram = m > n ? testing::product(ut, u, n, m, n) : testing::product(u, ut, m, n, m);
  double trace = 0;
  for (int64_t i = 0; i < side; ++i) trace += gram[i * side + i];
  EXPECT_NEAR(trace / static_cast<double>(side), 1.0, 0.3);
  // Odd polynomial: the symmetric part of U^T X is positive, so U still points along X.
  double along = 0;
  for (size_t i = 0; i < u.size(); ++i) along += u[i] * start[i];
  EXPECT_GT(along, 0.0);
}

// Everything that one matrix needs.
struct Matter {
  Matter(Device& d, int64_t m, int64_t n)
      : p(d, random("p", m * n, 0.05)),
        grad(d, random("g0", m * n, 0.01)),
        momentum(d, m * n),
        second(d, std::max(m, n)),
        scratch(d, m, n) {}
  Floats p, grad, momentum, second;
  Scratch scratch;
};

TEST_P(MuonTest, SameBitsForEveryNumberOfWorkers) {
  const auto [m, n] = GetParam();
  std::vector<Vec> results;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const auto own_device = make_cpu_device();
    const MuonValues values{0.02f, 0.9f, 0.1f, 1.0f};
    Matter matters[] = {{*own_device, m, n}, {*own_device, m, n}};
    own_device->ops().run_independent(2, [&](int64_t i, int) {
      const Matter& x = matters[i];
      muon_update(own_device->ops(), &values, m, n, x.grad.data(), x.p.data(), x.momentum.data(),
                  x.second.data(), x.scratch.pointers());
    });
    results.push_back(matters[0].p.get());
    results.push_back(matters[1].p.get());
  }
  set_num_threads(0);
  for (const Vec& result : results) EXPECT_EQ(result, results[0]);
}

TEST_P(MuonTest, ZeroGradientMovesNothingButByDecay) {
  const auto [m, n] = GetParam();
  const Vec start = random("p", m * n, 0.05);
  Floats p(*device, start), grad(*device, m * n), momentum(*device, m * n);
  Floats second(*device, std::max(m, n));
  const Scratch scratch(*device, m, n);
  const MuonValues values{0.5f, 0.9f, 0.0f, 1.0f};
  muon_update(device->ops(), &values, m, n, grad.data(), p.data(), momentum.data(), second.data(),
              scratch.pointers());
  EXPECT_EQ(p.get(), start);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MuonTest,
                         ::testing::Values(Shape{512, 128}, Shape{128, 512}, Shape{64, 64},
                                           Shape{33, 64}, Shape{2, 12}, Shape{1, 24}, Shape{24, 1},
                                           Shape{1, 1}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.m) + "x" +
                                  std::to_string(shape.param.n);
                         });

}  // namespace
}  // namespace heddle
