#include "plugins/conformance/want.h"

#include <gtest/gtest.h>

namespace heddle::conformance {
namespace {

using Values = std::vector<int64_t>;

TEST(WantedValues, ReadsTheFormsOfTheHeader) {
  heddle_attention_problem p{};
  p.n_head = 6;
  EXPECT_EQ(wanted_values("in{64,128}", p), (Values{64, 128}));
  EXPECT_EQ(wanted_values("in[1,256]", p), (Values{1, 256}));
  EXPECT_EQ(wanted_values("in[0,2^30)", p), (Values{0, (int64_t{1} << 30) - 1}));
  EXPECT_EQ(wanted_values("<=256", p), Values{256});
  EXPECT_EQ(wanted_values(">=-1", p), Values{-1});
  EXPECT_EQ(wanted_values("<8", p), Values{7});
  EXPECT_EQ(wanted_values(">8", p), Values{9});
  EXPECT_EQ(wanted_values("==1 (F32)", p), Values{1});
  EXPECT_EQ(wanted_values("%8==0", p), Values{8});
  EXPECT_EQ(wanted_values("divides n_head", p), (Values{1, 6}));
}

TEST(WantedValues, LeavesOtherTextAlone) {
  const heddle_attention_problem p{};
  for (const char* text : {"", "something else", "in{", "in{1;2}", "in[1", "%8", "==", "2^99"}) {
    EXPECT_FALSE(wanted_values(text, p)) << text;
  }
}

TEST(ProblemFields, AreReadAndSetByName) {
  heddle_attention_problem p{};
  p.window_left = -1;
  EXPECT_TRUE(set_field(p, "window_left", 5));
  EXPECT_EQ(get_field(p, "window_left"), 5);
  EXPECT_NE(p.required_features & HEDDLE_FEATURE_WINDOW_LEFT, 0u);
  EXPECT_FALSE(set_field(p, "wind", 5));
  EXPECT_FALSE(get_field(p, "wind"));
}

}  // namespace
}  // namespace heddle::conformance
