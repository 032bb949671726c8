// Forward and backward against the fp64 definition, on every ISA that this machine has.
#include "tests/unit/kernels/cpu/attention/attention_case.h"

namespace heddle::kernels::cpu::testing {
namespace {

Case square(int64_t tokens, int64_t window) {
  Case c;
  c.q_len = c.k_len = tokens;
  c.window_left = window;
  return c;
}

TEST(AttentionOracle, LengthsAndWindows) {
  for (const int64_t tokens : {1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129, 191, 257}) {
    for (const int64_t window : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{17},
                                 int64_t{63}, int64_t{64}, int64_t{65}, tokens - 1, tokens}) {
      if (window > tokens) continue;
      Case c = square(tokens, window);
      c.n_head = 2;
      check_case(c);
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionOracle, HeadDims) {
  for (const int64_t dim : {1,  2,  3,  4,  5,  7,  8,   12,  16,  20,  24,  31,
                            32, 36, 48, 64, 80, 96, 100, 127, 128, 160, 200, 256}) {
    for (const int64_t window : {-1, 17}) {
      Case c = square(70, window);
      c.n_head = 3;
      c.head_dim = dim;
      check_case(c);
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionOracle, Groups) {
  for (const int64_t group : {1, 2, 3, 5, 6, 7, 8, 10, 12}) {
    Case c = square(45, 9);
    c.batch = 2;
    c.n_kv_head = 2;
    c.n_head = 2 * group;
    c.head_dim = 12;
    check_case(c);
    if (HasFailure()) return;
  }
}

TEST(AttentionOracle, Layouts) {
  for (const Layout layout : {Layout::kPadded, Layout::kInterleaved}) {
    for (const int64_t dim : {4, 20, 64, 128, 256}) {
      Case c = square(81, 33);
      c.batch = 2;
      c.n_head = 6;
      c.n_kv_head = 2;
      c.head_dim = dim;
      c.layout = layout;
      check_case(c);
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionOracle, DifferentLengthsAndPositions) {
  for (const int64_t q_len : {1, 5, 40, 67, 256}) {
    for (const int64_t k_len : {0, 1, 2, 8, 70, 104, 300}) {
      for (const int64_t window : {-1, 0, 3, 20, 90}) {
        Case c;
        c.q_len = q_len;
        c.k_len = k_len;
        c.window_left = window;
        c.n_head = 2;
        check_case(c.bottom_right());
        c.q_pos0 = 1000;  // keys far behind, then a piece that ends inside the queries
        c.k_pos0 = 1000 + q_len / 2 - k_len;
        check_case(c);
        c.k_pos0 = 2000;  // keys in the future
        check_case(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttentionOracle, WithoutCausalMask) {
  for (const int64_t window : {-1, 0, 5, 40}) {
    Case c;
    c.q_len = 50;
    c.k_len = 83;
    c.window_left = window;
    c.causal = false;
    c.q_pos0 = 30;
    c.n_head = 4;
    c.n_kv_head = 2;
    check_case(c);
  }
}

TEST(AttentionOracle, AllDimensionsDiffer) {
  Case c;
  c.batch = 2;
  c.q_len = 5;
  c.k_len = 7;
  c.n_head = 6;
  c.n_kv_head = 3;
  c.head_dim = 40;
  check_case(c.bottom_right());
  c.k_len = 300;  // several key blocks, several chunks
  c.q_len = 290;
  c.window_left = 150;
  c.layout = Layout::kPadded;
  check_case(c.bottom_right());
}

// Scores up to about 47: the softmax is almost one-hot, the running maximum moves often.
TEST(AttentionOracle, LargeScores) {
  for (const int64_t tokens : {1, 16, 200}) {
    Case c = square(tokens, -1);
    c.head_dim = 16;
    c.gain = 6.0f;
    c.n_head = 2;
    check_case(c);
    c.q_len = 256;
    c.k_len = 2;
    check_case(c.bottom_right());
  }
}

// With few (batch row, kv head) pairs the backward cuts the queries into chunks.
TEST(AttentionOracle, ManyChunks) {
  for (const int64_t window : {-1, 100}) {
    Case c = square(1050, window);
    c.n_head = 2;
    c.head_dim = 8;
    check_case(c);
  }
}

TEST(AttentionOracle, NothingToDo) {
  for (const Isa isa : available_isas()) {
    const AttentionKernels& kernels = attention_kernels(isa);
    Case c;
    c.batch = 0;
    Tensors none(c);
    run_forward(kernels, problem_of(c, none), none);
    run_backward(kernels, problem_of(c, none), none);
    c = {};
    c.q_len = 0;
    c.k_len = 5;
    Tensors no_queries(c);
    run_forward(kernels, problem_of(c, no_queries), no_queries);
    run_backward(kernels, problem_of(c, no_queries), no_queries);
    for (const double x : no_queries.grad.k.values()) EXPECT_EQ(x, 0.0);
    for (const double x : no_queries.grad.v.values()) EXPECT_EQ(x, 0.0);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu::testing
