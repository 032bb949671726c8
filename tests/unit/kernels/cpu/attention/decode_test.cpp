// Decode with a cache against the fp64 definition; what is not to be read is NaN.
#include <limits>

#include "tests/unit/kernels/cpu/attention/attention_case.h"

namespace heddle::kernels::cpu::testing {
namespace {

struct DecodeCase {
  std::vector<int32_t> kv_len;
  int64_t q_len = 1, capacity = 1, n_head = 1, n_kv_head = 1, head_dim = 16;
  int64_t window_left = -1;
  bool causal = true;
};

std::ostream& operator<<(std::ostream& os, const DecodeCase& c) {
  os << "kv_len";
  for (const int32_t n : c.kv_len) os << ' ' << n;
  return os << " q_len " << c.q_len << " capacity " << c.capacity << " H " << c.n_head << " K "
            << c.n_kv_head << " D " << c.head_dim << " W " << c.window_left;
}

AttentionProblem problem_of(const DecodeCase& c, const Tensor& q, const Tensor& cache,
                            const Tensor& out) {
  AttentionProblem p;
  p.batch = static_cast<int64_t>(c.kv_len.size());
  p.q_len = c.q_len;
  p.k_len = c.capacity;
  p.n_head = c.n_head;
  p.n_kv_head = c.n_kv_head;
  p.head_dim = c.head_dim;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.causal = c.causal;
  p.window_left = c.window_left;
  p.q = q.strides;
  p.k = cache.strides;
  p.v = cache.strides;
  p.out = out.strides;
  p.lse_stride_head = c.q_len;
  p.lse_stride_batch = c.n_head * c.q_len;
  return p;
}

// Rows at kv_len and beyond, and for one query those left of its window, become NaN.
void poison_unread(const DecodeCase& c, const Tensor& cache) {
  for (int64_t b = 0; b < cache.batch; ++b) {
    const int64_t len = c.kv_len[static_cast<size_t>(b)];
    const int64_t first = c.window_left < 0 ? 0 : len - c.q_len - c.window_left;
    for (int64_t j = 0; j < c.capacity; ++j) {
      if (j >= first && j < len) continue;
      for (int64_t h = 0; h < c.n_kv_head; ++h) {
        std::fill_n(cache.row(b, j, h), c.head_dim, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
}

void check_decode(const DecodeCase& c) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const auto batch = static_cast<int64_t>(c.kv_len.size());
  const Tensor q = make_tensor(batch, c.q_len, c.n_head, c.head_dim, true);
  const Tensor k = make_tensor(batch, c.capacity, c.n_kv_head, c.head_dim, false);
  const Tensor v = make_tensor(batch, c.capacity, c.n_kv_head, c.head_dim, false);
  q.fill(1, 2.0f);
  k.fill(2, 2.0f);
  v.fill(3, 1.5f);

  reference::AttentionShape s;
  s.batch = batch;
  s.q_len = c.q_len;
  s.k_len = c.capacity;
  s.n_head = c.n_head;
  s.n_kv_head = c.n_kv_head;
  s.head_dim = c.head_dim;
  s.window_left = c.window_left;
  s.causal = c.causal;
  s.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  const auto queries = reference::contiguous(c.q_len, c.n_head, c.head_dim);
  const auto keys = reference::contiguous(c.capacity, c.n_kv_head, c.head_dim);
  const auto q64 = q.values(), k64 = k.values(), v64 = v.values();
  std::vector<double> want(q64.size()), lse(static_cast<size_t>(batch * c.n_head * c.q_len));
  reference::attention_decode<double, double, double>(s, {q64.data(), queries}, {k64.data(), keys},
                                                      {v64.data(), keys}, c.kv_len.data(),
                                                      {want.data(), queries}, lse.data());
  poison_unread(c, k);
  poison_unread(c, v);

  for (const Isa isa : available_isas()) {
    const AttentionKernels& kernels = attention_kernels(isa);
    SCOPED_TRACE(kernels.isa);
    for (const bool backwards : {false, true}) {
      const Tensor out = make_tensor(batch, c.q_len, c.n_head, c.head_dim, true);
      const GuardedFloats got_lse(batch * c.n_head * c.q_len);
      const AttentionProblem p = problem_of(c, q, k, out);
      const DecodeArgs args{q.data, k.data, v.data, c.kv_len.data(), out.data, got_lse.data()};
      run(kernels.plan_decode(p), p, args, kernels.run_decode, backwards);
      expect_close("out", out, want, 3e-6, 1e-5);
      expect_lse(got_lse, lse);
      expect_gaps_untouched("out", {out});
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(AttentionDecode, LengthsPerRow) {
  for (const int64_t window : {-1, 0, 8, 63}) {
    DecodeCase c;
    c.kv_len = {1, 3, 64, 0, 128, 33};
    c.capacity = 128;
    c.n_head = 6;
    c.n_kv_head = 2;
    c.window_left = window;
    check_decode(c);
  }
}

TEST(AttentionDecode, HeadDimsAndGroups) {
  for (const int64_t dim : {1, 8, 12, 20, 64, 96, 128, 256}) {
    for (const int64_t group : {1, 3, 4}) {
      DecodeCase c;
      c.kv_len = {129, 7};
      c.capacity = 130;
      c.n_kv_head = 2;
      c.n_head = 2 * group;
      c.head_dim = dim;
      check_decode(c);
      if (HasFailure()) return;
    }
  }
}

// One pair and a long cache: several splits, of which a window leaves some empty.
TEST(AttentionDecode, SplitsOfTheKeys) {
  for (const int64_t window : {-1, 10, 300, 4000}) {
    for (const int32_t length : {1, 127, 128, 129, 513, 4096}) {
      DecodeCase c;
      c.kv_len = {length};
      c.capacity = 4096;
      c.n_head = 3;
      c.window_left = window;
      check_decode(c);
      if (HasFailure()) return;
    }
  }
}

// A few tokens at once, and enough of them that the panel kernel takes over.
TEST(AttentionDecode, SeveralTokens) {
  for (const int64_t tokens : {2, 3, 5, 16, 40}) {
    for (const int64_t window : {-1, 0, 4, 30}) {
      DecodeCase c;
      c.kv_len = {40, 64, 41};
      c.capacity = 64;
      c.q_len = tokens;
      c.n_head = 4;
      c.n_kv_head = 2;
      c.window_left = window;
      check_decode(c);
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionDecode, WithoutCausalMask) {
  DecodeCase c;
  c.kv_len = {9, 20};
  c.capacity = 20;
  c.q_len = 3;
  c.causal = false;
  check_decode(c);
  c.q_len = 18;
  c.kv_len = {19, 20};
  check_decode(c);
}

// Prefill in chunks and token by token gives what one pass over the whole sequence gives.
TEST(AttentionDecode, AgreesWithForward) {
  Case c;
  c.q_len = c.k_len = 90;
  c.n_head = 4;
  c.n_kv_head = 2;
  c.window_left = 30;
  const Tensors t(c);
  const AttentionKernels& kernels = attention_kernels(select_isa());
  AttentionProblem p = testing::problem_of(c, t);
  run_forward(kernels, p, t);
  const Tensor out = make_tensor(1, c.q_len, c.n_head, c.head_dim, false);
  int32_t done = 0;
  for (const int32_t step : {64, 3, 20, 1, 1, 1}) {
    const int32_t length = done + step;
    p.q_len = step;
    p.lse_stride_head = step;
    const DecodeArgs args{t.in.q.row(0, done, 0), t.in.k.data, t.in.v.data, &length,
                          out.row(0, done, 0),    nullptr};
    run(kernels.plan_decode(p), p, args, kernels.run_decode);
    done = length;
  }
  expect_close("out", out, t.out.values(), 3e-6, 1e-5);
}

}  // namespace
}  // namespace heddle::kernels::cpu::testing
