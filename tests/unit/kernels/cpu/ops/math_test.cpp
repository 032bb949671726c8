// exp, tanh and sigmoid against libm in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/unit/kernels/cpu/ops/tables.h"

namespace heddle::kernels {
namespace {

using VectorFunction = void (*)(const float*, float*, int64_t);

// Largest relative error over a dense sweep of [low, high] and numbers near 0.
double worst_error(VectorFunction f, double (*exact)(double), double low, double high) {
  constexpr int kSteps = 200000;
  std::vector<float> x;
  for (int i = 0; i <= kSteps; ++i)
    x.push_back(static_cast<float>(low + (high - low) * i / kSteps));
  for (float tiny = 1e-30f; tiny < 1.0f; tiny *= 1.37f) {
    x.push_back(tiny);
    x.push_back(-tiny);
  }
  std::vector<float> y(x.size());
  f(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = exact(x[i]);
    const double error = want == 0 ? std::abs(y[i]) : std::abs(y[i] - want) / std::abs(want);
    worst = std::max(worst, error);
  }
  return worst;
}

class VectorMath : public OnEveryTable {};
HEDDLE_ON_EVERY_TABLE(VectorMath);

TEST_P(VectorMath, Exp) {
  EXPECT_LT(worst_error(table().exp, std::exp, -87, 88), 1.2e-7);
}

TEST_P(VectorMath, Tanh) {
  EXPECT_LT(worst_error(table().tanh, std::tanh, -12, 12), 2e-7);
}

TEST_P(VectorMath, Sigmoid) {
  const auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LT(worst_error(table().sigmoid, exact, -80, 80), 2e-7);
}

TEST_P(VectorMath, EdgesAndNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f, -0.0f, inf, -inf, 1000.0f, -1000.0f, std::nanf("")};
  std::vector<float> y(x.size());
  table().tanh(x.data(), y.data(), 7);
  EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1),
            (std::vector<float>{0, -0.0f, 1, -1, 1, -1}));
  EXPECT_TRUE(std::signbit(y[1]));
  EXPECT_TRUE(std::isnan(y[6]));
  table().exp(x.data(), y.data(), 7);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_GT(y[2], 1e38f);
  EXPECT_LT(y[3], 1e-37f);
  EXPECT_TRUE(std::isnan(y[6]));
  table().sigmoid(x.data(), y.data(), 7);
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[2], 1.0f);
  EXPECT_LT(y[3], 1e-37f);
  EXPECT_TRUE(std::isnan(y[6]));
}

TEST_P(VectorMath, TableNamesItself) {
  EXPECT_TRUE(table().lanes == 4 || table().lanes == 8 || table().lanes == 16);
  EXPECT_TRUE(std::isfinite(table().fma_burst(10)));
}

}  // namespace
}  // namespace heddle::kernels
