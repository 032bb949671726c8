#include <cstring>

#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class Elementwise : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(Elementwise);

constexpr int64_t kSizes[] = {0, 1, 7, 16, 1000, 70001};

TEST_P(Elementwise, ZeroCopyAdd) {
  for (int64_t n : kSizes) {
    const Floats src = noise(n, "src"), before = noise(n, "dst");
    Floats dst = before, sum = before, zeroed = before;
    ops_.copy(dst.data(), src.data(), n);
    ops_.add(sum.data(), src.data(), n);
    ops_.zero(zeroed.data(), static_cast<size_t>(n) * sizeof(float));
    EXPECT_EQ(dst, src);
    EXPECT_EQ(zeroed, Floats(static_cast<size_t>(n), 0.0f));
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], before[i] + src[i]);
  }
}

TEST_P(Elementwise, SumSquares) {
  for (int64_t n : kSizes) {
    const Floats x = noise(n, "x", 3.0f);
    double want = 0;
    for (float v : x) want += static_cast<double>(v) * v;
    EXPECT_NEAR(ops_.sum_squares(x.data(), n), want, 1e-7 * want);
  }
}

TEST_P(Elementwise, Relu2) {
  for (int64_t n : kSizes) {
    const Floats x = noise(n, "x"), weight = noise(n, "weight");
    Floats a = x, da = weight;
    ops_.relu2_forward(a.data(), n);
    ops_.relu2_backward(da.data(), a.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const float r = std::max(0.0f, x[i]);
      ASSERT_EQ(a[i], r * r);
      ASSERT_NEAR(da[i], 2.0 * r * weight[i], 3e-7 * std::abs(2.0 * r * weight[i]));
    }
  }
}

// Values of very different sizes, in every order: the same bits, and the right sum.
TEST_P(Elementwise, ExactSumsDoNotDependOnTheOrder) {
  constexpr int64_t kElements = 2051;
  constexpr int kValues = 24;
  std::vector<Floats> values;
  for (int k = 0; k < kValues; ++k) {
    values.push_back(
        noise(kElements, "value " + std::to_string(k), std::ldexp(1.0f, 5 * (k % 12) - 45)));
  }
  Doubles want(kElements);
  for (const Floats& v : values) {
    for (int64_t i = 0; i < kElements; ++i) want[i] += v[i];
  }
  Floats first;
  for (const int stride : {1, 5, 7, 23}) {
    Doubles high(kElements), low(kElements);
    for (int k = 0; k < kValues; ++k) {
      Floats x = values[k * stride % kValues];
      ops_.add_exact(x.data(), high.data(), low.data(), kElements);
      EXPECT_EQ(x, Floats(kElements, 0.0f));
    }
    Floats sum(kElements);
    ops_.round_exact(high.data(), low.data(), sum.data(), kElements);
    if (first.empty()) first = sum;
    EXPECT_EQ(std::memcmp(sum.data(), first.data(), kElements * sizeof(float)), 0);
  }
  for (int64_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(first[i], want[i], 6e-8 * std::abs(want[i]) + kValues * std::ldexp(1.0, -65));
  }
}

TEST_P(Elementwise, ExactSumsRefuseWhatTheyCannotHold) {
  for (const float bad : {32768.0f, -1e30f, INFINITY, NAN}) {
    Floats x = {1.0f, bad, 32767.0f};
    Doubles high(3), low(3);
    ops_.add_exact(x.data(), high.data(), low.data(), 3);
    ops_.round_exact(high.data(), low.data(), x.data(), 3);
    EXPECT_EQ(x[0], 1.0f);
    EXPECT_TRUE(std::isnan(x[1])) << bad;
    EXPECT_EQ(x[2], 32767.0f);
  }
}

}  // namespace
}  // namespace heddle::testing
