// The plain fp32 kernels on the emulator: the definition, the golden problems, and what they load.
#include <gtest/gtest.h>

#include "cuda_emulator.h"
#include "tests/cuda_emulator/attention_harness.h"

namespace heddle::kernels::cuda::testing {
namespace {

constexpr Element kF32 = Element::kF32;

TEST(PlainAttention, EqualsTheDefinition) {
  check_case({.q_len = 1, .k_len = 1, .head_dim = 1}, kF32);
  check_case({.batch = 2,
              .q_len = 37,
              .k_len = 37,
              .n_head = 6,
              .n_kv_head = 2,
              .head_dim = 20,
              .window_left = 9,
              .padded = true},
             kF32);
  check_case(
      Case{.q_len = 33, .k_len = 70, .n_head = 3, .n_kv_head = 1, .head_dim = 64}.bottom_right(),
      kF32);
  check_case(
      {.q_len = 40, .k_len = 65, .n_head = 2, .n_kv_head = 2, .head_dim = 40, .causal = false},
      kF32);
  check_case(
      {.q_len = 65, .k_len = 65, .n_head = 2, .n_kv_head = 1, .head_dim = 130, .window_left = 0},
      kF32);
}

TEST(PlainAttention, RowsThatSeeNothing) {
  // More queries than keys: the first three come before every key.
  check_case(
      Case{.q_len = 5, .k_len = 2, .n_head = 2, .n_kv_head = 1, .head_dim = 8}.bottom_right(),
      kF32);
  // Keys that are all outside of the window, and keys that no query sees.
  check_case({.q_len = 40, .k_len = 33, .head_dim = 8, .window_left = 3, .q_pos0 = 100}, kF32);
  check_case({.q_len = 40, .k_len = 80, .head_dim = 8, .q_pos0 = 10, .k_pos0 = 7}, kF32);
  check_case({.q_len = 0, .k_len = 5, .head_dim = 8}, kF32);
  check_case({.q_len = 5, .k_len = 0, .head_dim = 8}, kF32);
}

TEST(PlainAttention, DecodeWithLengthsPerRow) {
  check_case({.batch = 3,
              .q_len = 1,
              .k_len = 64,
              .n_head = 4,
              .n_kv_head = 2,
              .head_dim = 16,
              .kv_len = {64, 1, 33}},
             kF32);
  check_case(
      {
          .batch = 3,
          .q_len = 2,
          .k_len = 40,
          .n_head = 2,
          .n_kv_head = 1,
          .head_dim = 72,
          .window_left = 5,
          .kv_len = {2, 0, 39},
      },
      kF32);
  // Long enough to be split over blocks, with a row that leaves most splits without a key.
  Case split{.batch = 2,
             .q_len = 1,
             .k_len = 500,
             .n_head = 6,
             .n_kv_head = 2,
             .head_dim = 32,
             .kv_len = {500, 20}};
  check_case(split, kF32);
  AttentionProblem p = Bench(split, kF32).problem;
  p.op = Operation::kDecode;
  EXPECT_GT(decode_splits(p, 32, 32), 1);
  split.window_left = 70;
  check_case(split, kF32);
}

TEST(PlainAttention, CacheBeyondTheLengthIsNeverRead) {
  const Case c{.batch = 2,
               .q_len = 1,
               .k_len = 70,
               .n_head = 2,
               .n_kv_head = 1,
               .head_dim = 8,
               .window_left = 12,
               .kv_len = {40, 3}};
  Bench bench(c, kF32);
  auto k = bench.ks, v = bench.vs;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 70; ++t) {
      const int64_t len = c.kv_len[static_cast<size_t>(b)];
      if (t < len && t >= len - 13) continue;  // what the newest query sees
      for (int64_t d = 0; d < 8; ++d) {
        k[static_cast<size_t>((b * 70 + t) * 8 + d)] = nan;
        v[static_cast<size_t>((b * 70 + t) * 8 + d)] = nan;
      }
    }
  }
  const Exact want = bench.expected(Operation::kDecode);
  bench.set_inputs(bench.qs, k, v, bench.douts);
  bench.run(bench.variant(Operation::kDecode));
  const Results got = bench.attended();
  expect_close("out", got.out, want.out, out_gate(kF32));
  expect_lse(got.lse, want.lse);
}

TEST(PlainAttention, GoldenProblems) {
  for (const heddle::testing::GoldenAttention& g : heddle::testing::load_golden_attention()) {
    SCOPED_TRACE(g.name);
    Bench bench(case_of(g), kF32);
    bench.problem.scale = g.scale;
    bench.set_inputs(g.q, g.k, g.v, g.dout);
    bench.run(bench.variant(Operation::kForward));
    const Results got = bench.attended();
    heddle::testing::expect_golden("out", got.out, g.out);
    heddle::testing::expect_golden_lse(got.lse, g.lse);
    bench.run(bench.variant(Operation::kBackward));
    const Results gradients = bench.gradients();
    heddle::testing::expect_golden("dq", gradients.dq, g.dq);
    heddle::testing::expect_golden("dk", gradients.dk, g.dk);
    heddle::testing::expect_golden("dv", gradients.dv, g.dv);
  }
}

TEST(PlainAttention, TheBitsDoNotDependOnTheSchedule) {
  const Case c{
      .q_len = 70, .k_len = 70, .n_head = 4, .n_kv_head = 2, .head_dim = 16, .window_left = 33};
  Results first;
  for (const uint64_t schedule : {0, 1, 2, 3}) {
    emulator::set_schedule(schedule);
    Bench bench(c, kF32);
    bench.run(bench.variant(Operation::kForward));
    bench.run(bench.variant(Operation::kBackward, true));
    const Results got = bench.gradients();
    if (schedule == 0) first = got;
    EXPECT_EQ(got.dq, first.dq);
    EXPECT_EQ(got.dk, first.dk);
    EXPECT_EQ(got.dv, first.dv);
  }
  emulator::set_schedule(0);
}

// Bytes that a forward pass loads: q once, and per tile of 32 rows the key blocks it must visit,
// keys and values once for all heads of the group.
TEST(PlainAttention, LoadsOnlyTheBlocksThatARangeNames) {
  for (const int64_t window : {-1, 0, 31, 32, 40}) {
    const Case c{.q_len = 200,
                 .k_len = 200,
                 .n_head = 4,
                 .n_kv_head = 1,
                 .head_dim = 8,
                 .window_left = window};
    Bench bench(c, kF32);
    const Variant& v = bench.variant(Operation::kForward);
    emulator::reset_counters();
    bench.run(v);
    const int64_t row = 8 * 4;
    int64_t want = 200 * 4 * row;
    for (int64_t row0 = 0; row0 < 200 * 4; row0 += 32) {  // 8 tokens of 4 heads
      const int64_t first = row0 / 4, last = first + 7;
      const int64_t begin = window < 0 ? 0 : std::max<int64_t>(0, first - window);
      want += 2 * row * (last + 1 - begin);
    }
    EXPECT_EQ(emulator::counters().device_bytes_loaded, want) << "window " << window;
  }
}

}  // namespace
}  // namespace heddle::kernels::cuda::testing
