#include "framework/attention/probe_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;
namespace ref = kernels::reference;

constexpr float kInf = std::numeric_limits<float>::infinity();

class CompareTest : public ::testing::Test {
 protected:
  CompareTest() : got_(2 * 6 * 3 * 4, 1.0f), want_(got_) {
    problem_.op = HEDDLE_OP_FORWARD;
    problem_.batch = 2;
    problem_.q_len = 6;
    problem_.n_head = 3;
    problem_.lse_stride_batch = 18;
    problem_.lse_stride_head = 6;
  }
  void compare() {
    const ref::Strides strides = ref::contiguous(6, 3, 4);
    compare_tensor(problem_, "out", {2, 6, 3, 4}, {got_.data(), strides}, {want_.data(), strides},
                   kForwardGate);
  }
  // Element (b, t, h, d).
  float& got(int b, int t, int h, int d) {
    return got_[static_cast<size_t>(((b * 6 + t) * 3 + h) * 4 + d)];
  }

  heddle_attention_problem problem_{};
  std::vector<float> got_, want_;
};

TEST_F(CompareTest, EqualPasses) {
  EXPECT_NO_THROW(compare());
}

TEST_F(CompareTest, NamesTheFirstWrongElement) {
  got(0, 5, 1, 2) = 0.31f;
  got(1, 0, 0, 0) = 9.0f;
  EXPECT_THAT(test::error_of([&] { compare(); }),
              HasSubstr("out at batch 0, row 5, head 1, dim 2 is 0.31, expected 1"));
}

TEST_F(CompareTest, NanIsNeverRight) {
  got(1, 2, 0, 3) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(test::error_of([&] { compare(); }), HasSubstr("row 2, head 0, dim 3 is nan"));
  want_ = got_;
  EXPECT_THAT(test::error_of([&] { compare(); }), HasSubstr("is nan, expected nan"));
}

TEST_F(CompareTest, ManySmallErrorsFailTheNorm) {
  for (float& x : got_) x += 5e-6f;  // each within the absolute gate
  got(1, 1, 1, 1) += 2e-6f;
  EXPECT_THAT(test::error_of([&] { compare(); }), HasSubstr("batch 1, row 1, head 1, dim 1"));
}

TEST_F(CompareTest, LseHasInfinitiesExactlyWhereTheReferenceHas) {
  std::vector<float> lse(36, 2.0f);
  std::vector<double> want(36, 2.0);
  EXPECT_NO_THROW(compare_lse(problem_, lse.data(), want.data()));
  lse[7] = -kInf;
  want[7] = -kInf;
  EXPECT_NO_THROW(compare_lse(problem_, lse.data(), want.data()));
  want[7] = -1e30;
  EXPECT_THAT(test::error_of([&] { compare_lse(problem_, lse.data(), want.data()); }),
              HasSubstr("lse at batch 0, row 1, head 1 is -inf"));
  lse[7] = static_cast<float>(want[7] = 2.0);
  lse[35] = 2.0001f;
  EXPECT_THAT(test::error_of([&] { compare_lse(problem_, lse.data(), want.data()); }),
              HasSubstr("lse at batch 1, row 5, head 2 is 2.0001, expected 2"));
}

}  // namespace
}  // namespace heddle
