// Register tiles: the matrix products that attention is made of.
//
//   rows_x_panel      C[m][n] = sum_k A[m][k] B[k][n]    A row-major: scores, dP, dV, dK
//   columns_x_panel   C[m][n] = sum_k A[k][m] B[k][n]    A column-major: out and dQ, transposed
//
// n runs along vectors. One tile holds R x NV vectors of C in registers while k runs; A is
// broadcast element by element, straight from the caller's K, V or from P and dS, so nothing has
// to be packed for it. Per k: NV + R loads for R * NV FMAs.
#pragma once

#include "kernels/cpu/attention/vec.h"

namespace heddle::kernels::cpu::HEDDLE_ISA {

// 16 vector registers hold 6 x 2 sums, 2 of B and 1 of A; of 32 registers, 8 x 2 sums are enough
// to hide the FMA's latency and keep the row pointers in general registers.
inline constexpr int kTileRows = HEDDLE_LANES == 16 ? 8 : 6;
inline constexpr int kPanelVecs = 2;
inline constexpr int kPanelWidth = kPanelVecs * kLanes;

template <int R, int NV>
struct Tile {
  Vec sum[R][NV];

  HEDDLE_INLINE void clear() {
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) {
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) sum[r][v] = Vec{};
    }
  }
  HEDDLE_INLINE void load_from(const float* c, int64_t ldc) {
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) {
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) sum[r][v] = load(c + r * ldc + v * kLanes);
    }
  }
  HEDDLE_INLINE void load_scaled(const float* c, int64_t ldc, const Vec* scale) {
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) {
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) sum[r][v] = load(c + r * ldc + v * kLanes) * scale[v];
    }
  }
  HEDDLE_INLINE void store_to(float* c, int64_t ldc) const {
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) {
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) store(c + r * ldc + v * kLanes, sum[r][v]);
    }
  }

  HEDDLE_INLINE void rows_x_panel(const float* a, int64_t lda, const float* b, int64_t ldb,
                                  int64_t depth) {
    const float* row[R];
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) row[r] = a + r * lda;
    for (int64_t k = 0; k < depth; ++k, b += ldb) {
      Vec bk[NV];
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) bk[v] = load(b + v * kLanes);
      HEDDLE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec ak = splat(row[r][k]);
        HEDDLE_UNROLL
        for (int v = 0; v < NV; ++v) sum[r][v] += ak * bk[v];
      }
    }
  }

  HEDDLE_INLINE void columns_x_panel(const float* a, int64_t lda, const float* b, int64_t ldb,
                                     int64_t depth) {
    for (int64_t k = 0; k < depth; ++k, a += lda, b += ldb) {
      Vec bk[NV];
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) bk[v] = load(b + v * kLanes);
      HEDDLE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec ak = splat(a[r]);
        HEDDLE_UNROLL
        for (int v = 0; v < NV; ++v) sum[r][v] += ak * bk[v];
      }
    }
  }
};

// Calls body.template operator()<R>(first) for tiles of R <= kTileRows rows that cover [0, n). The
// sizes differ by at most one, so there is no thin last tile.
template <class Body>
HEDDLE_INLINE void for_row_tiles(int64_t n, Body&& body) {
  if (n <= 0) return;
  const int64_t tiles = (n + kTileRows - 1) / kTileRows;
  const int64_t small = n / tiles, larger = n % tiles;
  int64_t first = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = small + (t < larger ? 1 : 0);
    switch (rows) {
      case 1:
        body.template operator()<1>(first);
        break;
      case 2:
        body.template operator()<2>(first);
        break;
      case 3:
        body.template operator()<3>(first);
        break;
      case 4:
        body.template operator()<4>(first);
        break;
      case 5:
        body.template operator()<5>(first);
        break;
      case 6:
        body.template operator()<6>(first);
        break;
#if HEDDLE_LANES == 16
      case 7:
        body.template operator()<7>(first);
        break;
      case 8:
        body.template operator()<8>(first);
        break;
#endif
      default:
        __builtin_unreachable();
    }
    first += rows;
  }
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
