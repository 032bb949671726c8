// Products of a few rows with a large matrix, c = alpha a b^T + beta c: what decoding is made of.
// They are as fast as b streams from memory, so b is read once and in order, and nothing is packed.
#pragma once

#include "kernels/cpu/ops/ops_table.h"
#include "kernels/cpu/ops/vec.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

constexpr int64_t kThinTile = 8;          // rows of a that share one reading of b from L1
constexpr int64_t kThinAhead = 4096 / 4;  // floats of b fetched ahead: the processor's own fetching
                                          // ends at every page
constexpr int64_t kFloatsOfLine = 64 / 4;

// M rows of a by N rows of b, an accumulator for each dot product: its order is the same in every
// tile, so that a row's result does not depend on the rows beside it.
template <int M, int N>
HEDDLE_INLINE void thin_tile(const ThinProduct& op, const float* a, const float* b, float* c) {
  Vec sum[M][N] = {};
  const auto step = [&](int64_t i, auto io) HEDDLE_LAMBDA {
    Vec y[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) y[n] = io.load(b + n * op.ldb + i);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Vec x = io.load(a + m * op.lda + i);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[m][n] += x * y[n];
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= op.k; i += kLanes) {
    if (i % kFloatsOfLine == 0) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) __builtin_prefetch(b + n * op.ldb + i + kThinAhead);
    }
    step(i, Whole{});
  }
  if (i < op.k) step(i, Part{op.k - i});
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      float* out = c + m * op.ldc + n;
      const float product = op.alpha * reduce(sum[m][n]);
      *out = op.beta == 0.0f ? product : product + op.beta * *out;
    }
  }
}

// All rows of a by N rows of b.
template <int N>
HEDDLE_INLINE void thin_strip(const ThinProduct& op, const float* b, float* c) {
  int64_t m = 0;
  for (; m + kThinTile <= op.m; m += kThinTile) {
    thin_tile<kThinTile, N>(op, op.a + m * op.lda, b, c + m * op.ldc);
  }
  for (; m + 4 <= op.m; m += 4) thin_tile<4, N>(op, op.a + m * op.lda, b, c + m * op.ldc);
  for (; m < op.m; ++m) thin_tile<1, N>(op, op.a + m * op.lda, b, c + m * op.ldc);
}

void thin_matmul(const ThinProduct& op, int64_t begin, int64_t end) {
  // Sixteen accumulators and their operands need the 32 registers of AVX-512.
  constexpr int kStrip = HEDDLE_LANES == 16 ? 2 : 1;
  int64_t n = begin;
  if (op.m < 4) {
    for (; n + 4 <= end; n += 4) thin_strip<4>(op, op.b + n * op.ldb, op.c + n);
  }
  for (; n + kStrip <= end; n += kStrip) thin_strip<kStrip>(op, op.b + n * op.ldb, op.c + n);
  for (; n < end; ++n) thin_strip<1>(op, op.b + n * op.ldb, op.c + n);
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
