#include "plugins/conformance/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace heddle::conformance {
namespace {

Case large_case() {
  Case c;
  c.batch = 3;
  c.q_len = 70;
  c.k_len = 100;
  c.q_pos0 = 30;
  c.n_head = 12;
  c.n_kv_head = 4;
  c.head_dim = 64;
  c.window_left = 20;
  c.layout = Layout::kPadded;
  c.workers = 3;
  return c;
}

bool usable(const Case& c) {
  bool ok = c.batch >= 0 && c.q_len >= 0 && c.k_len >= 0 && c.head_dim >= 1 && c.n_kv_head >= 1 &&
            c.n_head % c.n_kv_head == 0;
  if (c.op == HEDDLE_OP_DECODE) ok = ok && c.kv_len.size() == static_cast<size_t>(c.batch);
  for (const int32_t n : c.kv_len) ok = ok && n >= 0 && n <= c.k_len;
  return ok;
}

TEST(Shrink, FindsTheSmallestThatFails) {
  const auto fails = [](const Case& c) { return c.q_len >= 5 && c.n_head >= 2; };
  const Case small = shrink(large_case(), fails, 1000);
  EXPECT_EQ(small.q_len, 5);
  EXPECT_EQ(small.k_len, 1);
  EXPECT_EQ(small.n_head, 2);
  EXPECT_EQ(small.batch, 1);
  EXPECT_EQ(small.head_dim, 1);
  EXPECT_EQ(small.window_left, -1);
  EXPECT_EQ(small.layout, Layout::kContiguous);
  EXPECT_EQ(small.workers, 1);
}

TEST(Shrink, KeepsTheLastQueryOnTheLastKey) {
  const auto fails = [](const Case& c) {
    return c.k_len >= 4 && c.q_pos0 - c.k_pos0 == c.k_len - c.q_len;
  };
  const Case small = shrink(large_case(), fails, 1000);
  EXPECT_EQ(small.k_len, 4);
  EXPECT_EQ(small.q_pos0, small.k_len - small.q_len);
}

TEST(Shrink, KeepsWholeGroups) {
  const auto fails = [](const Case& c) { return group_of(c) == 3 && c.n_kv_head >= 2; };
  const Case small = shrink(large_case(), fails, 1000);
  EXPECT_EQ(small.n_head, 6);
  EXPECT_EQ(small.n_kv_head, 2);
}

TEST(Shrink, FindsTheBatchRowOfDecode) {
  Case c = large_case();
  c.op = HEDDLE_OP_DECODE;
  c.kv_len = {100, 33, 70};
  const auto fails = [](const Case& x) {
    return usable(x) && std::find(x.kv_len.begin(), x.kv_len.end(), 33) != x.kv_len.end();
  };
  const Case small = shrink(c, fails, 1000);
  EXPECT_EQ(small.batch, 1);
  EXPECT_EQ(small.kv_len, std::vector<int32_t>{33});
  EXPECT_EQ(small.k_len, 33);
}

TEST(Shrink, EveryStepIsUsable) {
  Case c = large_case();
  for (const bool decode : {false, true}) {
    if (decode) {
      c.op = HEDDLE_OP_DECODE;
      c.q_pos0 = 0;
      c.kv_len = {100, 33, 70};
    }
    for (const Case& step : smaller_cases(c)) EXPECT_TRUE(usable(step)) << to_spec(step);
  }
}

TEST(Shrink, AsksNoMoreThanItMay) {
  int asked = 0;
  shrink(
      large_case(), [&](const Case&) { return ++asked, true; }, 7);
  EXPECT_EQ(asked, 7);
}

TEST(Shrink, LeavesACaseWhoseStepsAllPass) {
  const Case c = large_case();
  EXPECT_EQ(shrink(
                c, [](const Case&) { return false; }, 1000),
            c);
}

}  // namespace
}  // namespace heddle::conformance
