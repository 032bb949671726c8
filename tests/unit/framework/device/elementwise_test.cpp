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

struct Rounding {
  float from, to;
};
const Rounding kRoundings[] = {
    {1.0f, 1.0f},
    {1.0f + 0x1p-8f, 1.0f},              // ties go to the even neighbour
    {1.0f + 0x3p-8f, 1.0f + 0x1p-6f},
    {1.0f + 0x1.01p-8f, 1.0f + 0x1p-7f},
    {-1.0f - 0x0.ffp-8f, -1.0f},
    {3.4e38f, INFINITY},                 // beyond the largest bf16
    {-INFINITY, -INFINITY},
    {-0.0f, -0.0f},
};

// Rows with and without gaps, widths that are multiples of 4 and not.
TEST_P(Elementwise, ConvertsToBf16AndBack) {
  struct {
    int64_t rows, cols, gap;
  } const shapes[] = {{1, 1, 0}, {3, 7, 2}, {4, 8, 4}, {2, 1024, 0}, {5, 12, 1}, {0, 4, 0}};
  for (const auto& s : shapes) {
    const int64_t ld = s.cols + s.gap;
    Floats x(s.rows * ld), back(s.rows * ld, 7.0f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = kRoundings[i % std::size(kRoundings)].from;
    if (x.size() > 20) x[20] = NAN;
    std::vector<uint16_t> narrow(x.size(), 0x4040);
    const Matrix to{narrow.data(), s.rows, s.cols, ld, DType::kBF16};
    ops_.convert({x.data(), s.rows, s.cols, ld, DType::kF32}, to);
    ops_.convert(to, {back.data(), s.rows, s.cols, ld, DType::kF32});
    for (size_t i = 0; i < x.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % ld;
      if (column >= s.cols) {
        ASSERT_EQ(back[i], 7.0f);
        ASSERT_EQ(narrow[i], 0x4040);
      } else if (i == 20) {
        ASSERT_TRUE(std::isnan(back[i]));
      } else {
        ASSERT_EQ(back[i], kRoundings[i % std::size(kRoundings)].to) << i;
      }
    }
  }
}

}  // namespace
}  // namespace heddle::testing
