// Products of a few rows with a large matrix, c = alpha a b^T + beta c: what decoding is made of.
// They are as fast as b streams from memory, so b is read once and in order, and nothing is packed.
#pragma once

#include "kernels/cpu/ops/ops_table.h"
#include "kernels/cpu/ops/vec.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

constexpr int kThinRows = 8;              // of a, that share one reading of b
constexpr int64_t kThinPanel = 16;        // columns whose b stays in a cache for the next rows of a
constexpr int64_t kThinAhead = 2 * 1024;  // floats of b
constexpr int64_t kFloatsOfLine = 64 / 4;

// Columns of a tile of M rows: its sums, one row of a and the columns' b fit the registers.
constexpr int thin_columns(int rows) {
  const int registers = HEDDLE_LANES == 16 ? 32 : 16;
  const int columns = (registers - 2) / (rows + 1);
  return columns > 4 ? 4 : columns;
}

// The compiler would read a vector with several uses from memory for each of them.
HEDDLE_INLINE void keep_in_register([[maybe_unused]] Vec& x) {
#if HEDDLE_LANES == 16 && defined(__AVX512F__)
  asm("" : "+v"(x));
#endif
}

// The sums over lanes of up to four vectors, each in the order of reduce().
template <int N>
HEDDLE_INLINE Vec4 reduce_columns(const Vec* sum) {
  Vec4 x[4] = {};
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#if HEDDLE_LANES == 4
    x[n] = sum[n];
#elif HEDDLE_LANES == 8
    x[n] = fold8(sum[n]);
#else
    x[n] = fold8(fold16(sum[n]));
#endif
  }
  const Vec4 ab = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5) +
                  __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const Vec4 cd = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5) +
                  __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

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
      Vec x = io.load(a + m * op.lda + i);
      keep_in_register(x);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[m][n] += x * y[n];
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= op.k; i += kLanes) {
    // In the order of memory (b is dense as a rule): so the processor's own prefetcher joins in.
    if (i % kFloatsOfLine == 0) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) __builtin_prefetch(b + N * i + n * kFloatsOfLine + kThinAhead);
    }
    step(i, Whole{});
  }
  if (i < op.k) step(i, Part{op.k - i});
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Vec4 total = reduce_columns<N>(sum[m]);
    float* out = c + m * op.ldc;
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const float product = op.alpha * total[n];
      out[n] = op.beta == 0.0f ? product : product + op.beta * out[n];
    }
  }
}

// M rows of a, from row m on, by rows [begin, end) of b.
template <int M>
void thin_rows(const ThinProduct& op, int64_t m, int64_t begin, int64_t end) {
  constexpr int kColumns = thin_columns(M);
  const float* a = op.a + m * op.lda;
  float* c = op.c + m * op.ldc;
  int64_t n = begin;
  for (; n + kColumns <= end; n += kColumns) {
    thin_tile<M, kColumns>(op, a, op.b + n * op.ldb, c + n);
  }
  for (; n < end; ++n) thin_tile<M, 1>(op, a, op.b + n * op.ldb, c + n);
}

void thin_matmul(const ThinProduct& op, int64_t begin, int64_t end) {
  static constexpr decltype(&thin_rows<1>) kRows[kThinRows] = {
      thin_rows<1>, thin_rows<2>, thin_rows<3>, thin_rows<4>,
      thin_rows<5>, thin_rows<6>, thin_rows<7>, thin_rows<8>};
  const int64_t panel = op.m <= kThinRows ? end - begin : kThinPanel;
  for (int64_t n = begin; n < end; n += panel) {
    const int64_t stop = end - n < panel ? end : n + panel;
    for (int64_t m = 0; m < op.m; m += kThinRows) {
      const int64_t rows = op.m - m < kThinRows ? op.m - m : kThinRows;
      kRows[rows - 1](op, m, n, stop);
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
