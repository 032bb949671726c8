// The header as a C++20 author sees it, against the published layout, and the one function that it
// defines.
#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "plugins/abi/heddle_attention.h"
#include "tests/unit/plugins/abi/abi_values.h"

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes));
#define FIELD(type, name, offset, bytes)           \
  static_assert(offsetof(type, name) == (offset)); \
  static_assert(sizeof(std::declval<type>().name) == (bytes));
#include "tests/unit/plugins/abi/layout_v1_0.inc"
#undef SIZE
#undef FIELD

#define VALUE(name, number) static_assert((name) == (number));
HEDDLE_ABI_VALUES(VALUE)
#undef VALUE

extern "C" uint64_t heddle_required_features_in_c(const heddle_attention_problem* problem);

namespace {

heddle_attention_problem plain() {
  heddle_attention_problem p{};
  p.op = HEDDLE_OP_FORWARD;
  p.n_head = p.n_kv_head = 4;
  p.q_len = p.k_len = 10;
  p.window_left = -1;
  return p;
}

void expect_features(const heddle_attention_problem& p, uint64_t features) {
  EXPECT_EQ(heddle_attention_required_features(&p), features);
  EXPECT_EQ(heddle_required_features_in_c(&p), features);
}

TEST(Abi, EverySemanticHasItsBit) {
  heddle_attention_problem p = plain();
  expect_features(p, 0);
  p.mask = HEDDLE_MASK_CAUSAL;
  expect_features(p, HEDDLE_FEATURE_CAUSAL);
  p = plain();
  p.window_left = 0;
  expect_features(p, HEDDLE_FEATURE_WINDOW_LEFT);
  p = plain();
  p.n_kv_head = 2;
  expect_features(p, HEDDLE_FEATURE_GQA);
  p = plain();
  p.flags = HEDDLE_FLAG_LSE_OUT | HEDDLE_FLAG_DETERMINISTIC;
  expect_features(p, HEDDLE_FEATURE_LSE_OUT | HEDDLE_FEATURE_DETERMINISTIC);
}

TEST(Abi, OffsetsAndUnequalLengthsNeedPositions) {
  heddle_attention_problem p = plain();
  p.q_pos0 = 1;
  expect_features(p, HEDDLE_FEATURE_POS_OFFSET);
  p = plain();
  p.k_pos0 = 1;
  expect_features(p, HEDDLE_FEATURE_POS_OFFSET);
  p = plain();
  p.q_len = 3;
  expect_features(p, HEDDLE_FEATURE_POS_OFFSET);
  p.op = HEDDLE_OP_DECODE;
  expect_features(p, HEDDLE_FEATURE_KV_LEN);
}

TEST(Abi, EntryNameIsThatOfTheMajor) {
  EXPECT_STREQ(HEDDLE_ATTENTION_ENTRY, "heddle_attention_plugin_v1");
}

}  // namespace
