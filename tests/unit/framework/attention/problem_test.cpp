#include <gtest/gtest.h>

#include <cmath>

#include "framework/attention/attention.h"

namespace heddle {
namespace {

constexpr AttentionLayerKind kKind{4, 2, 32, 128};

AttentionLayout fused_layout() {
  AttentionLayout l;
  l.q_row = l.k_row = l.v_row = l.dq_row = l.dk_row = l.dv_row = (4 + 2 * 2) * 32;
  l.out_row = l.dout_row = 4 * 32;
  return l;
}

void expect_strides(const heddle_strides& s, int64_t batch, int64_t token, int64_t head) {
  EXPECT_EQ(s.batch, batch);
  EXPECT_EQ(s.token, token);
  EXPECT_EQ(s.head, head);
}

TEST(AttentionProblem, ForwardReadsProjectedRows) {
  const heddle_attention_problem p =
      make_attention_problem(kKind, HEDDLE_OP_FORWARD, 3, 100, 100, fused_layout(), true);
  EXPECT_EQ(p.struct_size, sizeof p);
  expect_strides(p.q, 100 * 256, 256, 32);
  expect_strides(p.k, 100 * 256, 256, 32);
  expect_strides(p.v, 100 * 256, 256, 32);
  expect_strides(p.out, 100 * 128, 128, 32);
  expect_strides(p.dq, 0, 0, 0);
  EXPECT_EQ(p.lse_stride_batch, 4 * 100);
  EXPECT_EQ(p.lse_stride_head, 100);
  EXPECT_EQ(p.mask, uint32_t{HEDDLE_MASK_CAUSAL});
  EXPECT_EQ(p.window_left, 128);
  EXPECT_FLOAT_EQ(p.scale, static_cast<float>(1.0 / std::sqrt(32.0)));
  EXPECT_EQ(p.flags, HEDDLE_FLAG_LSE_OUT | HEDDLE_FLAG_DETERMINISTIC);
  EXPECT_EQ(p.required_features, heddle_attention_required_features(&p));
  EXPECT_EQ(p.required_features, HEDDLE_FEATURE_CAUSAL | HEDDLE_FEATURE_WINDOW_LEFT |
                                     HEDDLE_FEATURE_GQA | HEDDLE_FEATURE_LSE_OUT |
                                     HEDDLE_FEATURE_DETERMINISTIC);
}

TEST(AttentionProblem, BackwardHasGradientsToo) {
  const heddle_attention_problem p =
      make_attention_problem(kKind, HEDDLE_OP_BACKWARD, 3, 100, 100, fused_layout(), false);
  expect_strides(p.dout, 100 * 128, 128, 32);
  expect_strides(p.dq, 100 * 256, 256, 32);
  expect_strides(p.dk, 100 * 256, 256, 32);
  expect_strides(p.dv, 100 * 256, 256, 32);
}

TEST(AttentionProblem, DecodeReadsAContiguousCache) {
  const heddle_attention_problem p =
      make_attention_problem({4, 4, 32, -1}, HEDDLE_OP_DECODE, 3, 2, 500, fused_layout(), false);
  expect_strides(p.q, 2 * 256, 256, 32);
  expect_strides(p.k, 500 * 4 * 32, 4 * 32, 32);
  expect_strides(p.v, 500 * 4 * 32, 4 * 32, 32);
  EXPECT_EQ(p.k_len, 500);
  EXPECT_EQ(p.required_features, HEDDLE_FEATURE_CAUSAL | HEDDLE_FEATURE_KV_LEN);
}

TEST(AttentionProblem, AlignmentFollowsWhatSlicesShare) {
  const auto align = [](int64_t head_dim, int64_t row) {
    AttentionLayout l;
    l.q_row = l.k_row = l.v_row = row;
    l.out_row = 2 * head_dim;
    return make_attention_problem({2, 2, head_dim, -1}, HEDDLE_OP_FORWARD, 1, 5, 5, l, true)
        .align_bytes;
  };
  EXPECT_EQ(align(64, 384), 16u);
  EXPECT_EQ(align(12, 72), 16u);
  EXPECT_EQ(align(6, 36), 8u);
  EXPECT_EQ(align(5, 30), 4u);
  EXPECT_EQ(align(64, 385), 4u);
}

}  // namespace
}  // namespace heddle
