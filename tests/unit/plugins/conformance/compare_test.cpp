#include "plugins/conformance/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace heddle::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// (batch 1, 2 tokens, 2 heads, dim 2)
const Shape kOut{"out", 1, 2, 2, 2, false};

TEST(Compare, NamesTheFirstElementInTheOrderBatchHeadRowDim) {
  const std::vector<double> want(8, 1.0);
  std::vector<float> got(8, 1.0f);
  got[3] = 2.0f;  // token 0, head 1, dim 1
  got[4] = 3.0f;  // token 1, head 0, dim 0
  const auto d = compare(kOut, got, want, out_gate(HEDDLE_DTYPE_F32, 1.0));
  ASSERT_TRUE(d);
  EXPECT_EQ(d->h, 0);
  EXPECT_EQ(d->row, 1);
  EXPECT_EQ(d->dim, 0);
  EXPECT_EQ(d->wrong, 2);
  EXPECT_EQ(describe(*d),
            "out (b 0, h 0, row 1, dim 0): got 3, expected 1; 2 of 8 elements are wrong");
}

TEST(Compare, NanIsWrongWhereverItIsNotExpected) {
  const Gate gate{1.0, 1e9, 0.0};
  EXPECT_TRUE(compare(kOut, std::vector<float>(8, kNan), std::vector<double>(8, 1.0), gate));
  EXPECT_TRUE(compare(kOut, std::vector<float>(8, 1.0f), std::vector<double>(8, kNan), gate));
}

TEST(Compare, InfinitiesHaveToAgree) {
  const Shape lse{"lse", 1, 1, 1, 1, true};
  const Gate gate = lse_gate(1.0);
  EXPECT_FALSE(compare(lse, {-HUGE_VALF}, {-kInfinity}, gate));
  EXPECT_TRUE(compare(lse, {HUGE_VALF}, {-kInfinity}, gate));
  EXPECT_TRUE(compare(lse, {0.0f}, {-kInfinity}, gate));
  EXPECT_TRUE(compare(lse, {-HUGE_VALF}, {0.0}, gate));
}

TEST(Compare, SmallErrorsEverywhereFailByTheWhole) {
  const Shape shape{"out", 1, 100, 1, 1, false};
  std::vector<double> want(100, 1.0);
  const std::vector<float> got(100, 1.000005f);
  const auto d = compare(shape, got, want, out_gate(HEDDLE_DTYPE_F32, 1.0));
  ASSERT_TRUE(d);
  EXPECT_NEAR(d->relative, 5e-6, 2e-7);
}

TEST(Compare, GatesWidenWithTheScores) {
  EXPECT_EQ(out_gate(HEDDLE_DTYPE_F32, 10.0).relative, 3e-6);
  EXPECT_GT(out_gate(HEDDLE_DTYPE_F32, 1000.0).relative, 3e-5);
}

TEST(Compare, PoisonIsRecognised) {
  Case c;
  c.poison = 0x3f;
  const std::vector<double> want(8, 1.0);
  const auto d = compare(kOut, std::vector<float>(8, poison_of(c)), want,
                         out_gate(HEDDLE_DTYPE_F32, 1.0), poison_of(c));
  ASSERT_TRUE(d);
  EXPECT_TRUE(d->unwritten);
  EXPECT_NE(describe(*d).find("never written"), std::string::npos);
}

}  // namespace
}  // namespace heddle::conformance
