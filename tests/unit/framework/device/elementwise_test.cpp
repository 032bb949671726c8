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

}  // namespace
}  // namespace heddle::testing
