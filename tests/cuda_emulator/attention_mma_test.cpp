// The tensor core kernels on the emulator, in bf16 and fp16. Every head_dim bucket, tails of every
// tile, windows at the edges of tiles, groups, positions and cache lengths.
#include <gtest/gtest.h>

#include "cuda_emulator.h"
#include "tests/cuda_emulator/attention_harness.h"

namespace heddle::kernels::cuda::testing {
namespace {

class MmaAttention : public ::testing::TestWithParam<Element> {
 protected:
  void TearDown() override { emulator::set_schedule(0); }
};
INSTANTIATE_TEST_SUITE_P(Elements, MmaAttention, ::testing::Values(Element::kBf16, Element::kF16),
                         [](const auto& p) { return p.param == Element::kBf16 ? "bf16" : "fp16"; });

TEST_P(MmaAttention, EqualsTheDefinition) {
  const Element e = GetParam();
  check_case({.q_len = 1, .k_len = 1, .head_dim = 8}, e);
  check_case({.batch = 2,
              .q_len = 67,
              .k_len = 67,
              .n_head = 6,
              .n_kv_head = 2,
              .head_dim = 40,
              .window_left = 9,
              .padded = true},
             e);
  check_case(
      Case{.q_len = 33, .k_len = 150, .n_head = 3, .n_kv_head = 1, .head_dim = 64}.bottom_right(),
      e);
  check_case(
      {.q_len = 70, .k_len = 65, .n_head = 2, .n_kv_head = 2, .head_dim = 96, .causal = false}, e);
  check_case(
      {.q_len = 130, .k_len = 130, .n_head = 2, .n_kv_head = 1, .head_dim = 128, .window_left = 64},
      e);
}

TEST_P(MmaAttention, GradientsInAFixedOrder) {
  const Element e = GetParam();
  check_case({.batch = 2,
              .q_len = 67,
              .k_len = 67,
              .n_head = 6,
              .n_kv_head = 2,
              .head_dim = 40,
              .window_left = 9,
              .padded = true},
             e, true);
  check_case(
      Case{.q_len = 40, .k_len = 104, .n_head = 2, .n_kv_head = 1, .head_dim = 80}.bottom_right(),
      e, true);
  check_case({.q_len = 129, .k_len = 129, .head_dim = 128, .window_left = 63}, e, true);
}

TEST_P(MmaAttention, RowsThatSeeNothing) {
  for (const bool deterministic : {false, true}) {
    const Element e = GetParam();
    check_case(
        Case{.q_len = 5, .k_len = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 8}.bottom_right(), e,
        deterministic);
    check_case(Case{.q_len = 200, .k_len = 2, .head_dim = 32}.bottom_right(), e, deterministic);
    check_case({.q_len = 70, .k_len = 65, .head_dim = 8, .window_left = 3, .q_pos0 = 100}, e,
               deterministic);
    check_case({.q_len = 40, .k_len = 80, .head_dim = 8, .q_pos0 = 10, .k_pos0 = 7}, e,
               deterministic);
    check_case({.q_len = 0, .k_len = 5, .head_dim = 8}, e, deterministic);
    check_case({.q_len = 5, .k_len = 0, .head_dim = 8}, e, deterministic);
  }
}

TEST_P(MmaAttention, DecodeWithLengthsPerRow) {
  const Element e = GetParam();
  check_case({.batch = 3,
              .q_len = 1,
              .k_len = 64,
              .n_head = 4,
              .n_kv_head = 2,
              .head_dim = 16,
              .kv_len = {64, 1, 33}},
             e);
  check_case({.batch = 3,
              .q_len = 2,
              .k_len = 40,
              .n_head = 2,
              .n_kv_head = 1,
              .head_dim = 72,
              .window_left = 5,
              .kv_len = {2, 0, 39}},
             e);
  check_case({.batch = 2,
              .q_len = 1,
              .k_len = 900,
              .n_head = 6,
              .n_kv_head = 2,
              .head_dim = 128,
              .kv_len = {900, 20}},
             e);
  check_case({.batch = 1,
              .q_len = 3,
              .k_len = 300,
              .n_head = 8,
              .n_kv_head = 1,
              .head_dim = 256,
              .window_left = 250,
              .kv_len = {290}},
             e);
}

TEST_P(MmaAttention, GoldenProblems) {
  for (const heddle::testing::GoldenAttention& g : heddle::testing::load_golden_attention()) {
    SCOPED_TRACE(g.name);
    if (g.head_dim % 8 != 0) continue;
    const Element e = GetParam();
    Bench bench(case_of(g), e);
    bench.problem.scale = g.scale;
    const auto to_e = [&](std::vector<float> x) {
      for (float& v : x) v = rounded(e, v);
      return x;
    };
    bench.set_inputs(to_e(g.q), to_e(g.k), to_e(g.v), to_e(g.dout));
    const Exact want = bench.expected(Operation::kBackward);
    bench.run(bench.variant(Operation::kForward));
    const Results got = bench.attended();
    expect_close("out", got.out, want.out, out_gate(e));
    expect_lse(got.lse, want.lse);
    expect_twice_exact("out", e, got.out, want.out, g.out, out_gate(e));
    if (g.head_dim > 128) continue;
    bench.run(bench.variant(Operation::kBackward));
    const Results gradients = bench.gradients();
    expect_close("dq", gradients.dq, want.dq, gradient_gate(e));
    expect_close("dk", gradients.dk, want.dk, gradient_gate(e));
    expect_close("dv", gradients.dv, want.dv, gradient_gate(e));
    expect_twice_exact("dq", e, gradients.dq, want.dq, g.dq, gradient_gate(e));
    expect_twice_exact("dk", e, gradients.dk, want.dk, g.dk, gradient_gate(e));
    expect_twice_exact("dv", e, gradients.dv, want.dv, g.dv, gradient_gate(e));
  }
}

TEST_P(MmaAttention, DeterministicGradientsHaveTheSameBitsUnderEverySchedule) {
  const Case c{
      .q_len = 70, .k_len = 70, .n_head = 2, .n_kv_head = 1, .head_dim = 16, .window_left = 40};
  Results first;
  for (uint64_t schedule = 0; schedule < 20; ++schedule) {
    emulator::set_schedule(schedule);
    Bench bench(c, GetParam());
    bench.run(bench.variant(Operation::kForward));
    bench.run(bench.variant(Operation::kBackward, true));
    const Results got = bench.gradients();
    if (schedule == 0) first = got;
    EXPECT_EQ(got.dq, first.dq);
    EXPECT_EQ(got.dk, first.dk);
    EXPECT_EQ(got.dv, first.dv);
  }
}

// The count of products says which blocks were visited: 4 warps, per block of 64 keys and 64 rows
// 2 * 8 * (64 / 16) of 16x8x16.
TEST_P(MmaAttention, VisitsOnlyTheBlocksThatARangeNames) {
  for (const int64_t window : {-1, 0, 63, 64, 65, 128}) {
    const Case c{.q_len = 256,
                 .k_len = 256,
                 .n_head = 2,
                 .n_kv_head = 1,
                 .head_dim = 64,
                 .window_left = window};
    Bench bench(c, GetParam());
    const Variant& v = bench.variant(Operation::kForward);
    emulator::reset_counters();
    bench.run(v);
    int64_t blocks = 0;  // a tile is 32 tokens of two heads
    for (int64_t first = 0; first < 256; first += 32) {
      const int64_t begin = window < 0 ? 0 : std::max<int64_t>(0, first - window);
      blocks += (first + 31) / 64 - begin / 64 + 1;
    }
    EXPECT_EQ(emulator::counters().matrix_products, blocks * 4 * 2 * 8 * 4) << window;
  }
}

TEST(Variants, EachRowTakesWhatItSays) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(v.name);
    AttentionProblem p;
    p.op = v.op;
    p.element = v.element;
    p.head_dim = v.most_head_dim;
    p.arch = v.least_arch;
    p.align_bytes = v.align_bytes;
    p.deterministic = v.deterministic;
    EXPECT_EQ(misfit(v, p), Misfit::kNone);
    AttentionProblem other = p;
    other.head_dim = v.most_head_dim + v.head_dim_multiple;
    EXPECT_EQ(misfit(v, other), Misfit::kHeadDim);
    other = p;
    other.arch = v.least_arch - 1;
    EXPECT_EQ(misfit(v, other), Misfit::kArch);
    other = p;
    other.align_bytes = v.align_bytes / 2;
    EXPECT_EQ(misfit(v, other), Misfit::kAlignment);
    other = p;
    other.shared_limit = v.shared_bytes - 1;
    EXPECT_EQ(misfit(v, other), Misfit::kShared);
  }
}

}  // namespace
}  // namespace heddle::kernels::cuda::testing
