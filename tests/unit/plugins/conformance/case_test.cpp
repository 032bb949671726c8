#include "plugins/conformance/case.h"

#include <gtest/gtest.h>

namespace heddle::conformance {
namespace {

TEST(CaseSpec, DefaultsAreLeftOut) {
  EXPECT_EQ(to_spec(Case{}), "forward");
}

TEST(CaseSpec, ComesBack) {
  Case c;
  c.op = HEDDLE_OP_DECODE;
  c.batch = 3;
  c.q_len = 2;
  c.k_len = 40;
  c.n_head = 6;
  c.n_kv_head = 2;
  c.head_dim = 7;
  c.window_left = 0;
  c.causal = false;
  c.kv_len = {2, 40, 17};
  c.scale = 0.3;
  c.lse = false;
  c.deterministic = true;
  c.dtype = HEDDLE_DTYPE_BF16;
  c.layout = Layout::kPacked;
  c.data = Data::kHot;
  c.edge = Edge::kStart;
  c.order = Order::kReversed;
  c.workers = 3;
  c.poison = 0x3f;
  c.chunk = 5;
  c.seed = 99;
  std::string error;
  const auto back = parse_spec(to_spec(c), &error);
  ASSERT_TRUE(back) << error;
  EXPECT_EQ(*back, c);
}

TEST(CaseSpec, SaysWhatIsWrong) {
  const auto error_of = [](const char* spec) {
    std::string error;
    EXPECT_FALSE(parse_spec(spec, &error)) << spec;
    return error;
  };
  EXPECT_NE(error_of("sideways,q_len=3").find("'sideways'"), std::string::npos);
  EXPECT_NE(error_of("forward,tokens=3").find("'tokens=3'"), std::string::npos);
  EXPECT_NE(error_of("forward,q_len=x").find("'q_len=x'"), std::string::npos);
  EXPECT_NE(error_of("forward,layout=round").find("'layout=round'"), std::string::npos);
  EXPECT_NE(error_of("decode,batch=2,kv_len=1").find("kv_len"), std::string::npos);
  EXPECT_NE(error_of("decode,k_len=4,kv_len=5").find("0..k_len"), std::string::npos);
  EXPECT_NE(error_of("forward,q_len=-1").find("negative"), std::string::npos);
}

TEST(Case, PositionsOfDecodeFollowTheLength) {
  Case c;
  c.op = HEDDLE_OP_DECODE;
  c.batch = 2;
  c.q_len = 3;
  c.k_len = 10;
  c.kv_len = {7, 2};
  EXPECT_EQ(query_position(c, 0, 0), 4);
  EXPECT_EQ(query_position(c, 1, 0), -1);
  EXPECT_EQ(keys_of(c, 1), 2);
}

TEST(Case, ScaleHasADefault) {
  Case c;
  c.head_dim = 64;
  EXPECT_EQ(scale_of(c), 0.125f);
  c.scale = 0.5;
  EXPECT_EQ(scale_of(c), 0.5f);
}

}  // namespace
}  // namespace heddle::conformance
