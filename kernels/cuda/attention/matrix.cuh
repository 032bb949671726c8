// Tiles of 16-bit elements in shared memory and products of them by a warp (mma.m16n8k16).
//
// A row takes 16 bytes more than its elements, an odd number of 16-byte chunks: the eight rows that
// an ldmatrix reads at once lie in different banks.
#pragma once

#include "kernels/cuda/attention/arguments.cuh"
#include "kernels/cuda/hardware/cp_async.h"
#include "kernels/cuda/hardware/element.h"
#include "kernels/cuda/hardware/ldmatrix.h"
#include "kernels/cuda/hardware/mma.h"
#include "kernels/cuda/hardware/shared.h"

namespace heddle::kernels::cuda {

inline constexpr int kChunk = 8;  // elements of 16 bytes

template <class T, int kRows, int kColumns>
struct Matrix {
  static_assert(kColumns % 16 == 0);
  static constexpr int kStride = kColumns + kChunk;
  static constexpr int kElements = kRows * kStride;
  T* data;
  __device__ T* at(int row, int column) const { return data + row * kStride + column; }
};

// How kThreads threads copy a tile: kLanes side by side take 16-byte chunks of one row, so that
// what a thread copies lies at fixed distances from where it starts.
template <int kThreads, class T, int kRows, int kColumns>
struct Copies {
  static constexpr int kChunks = kColumns / kChunk;
  static constexpr int kLanes = kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kRowsAtOnce = kThreads / kLanes;
  static_assert(kRows % kRowsAtOnce == 0 && kChunks % kLanes == 0);
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kLanes * kChunk; }
};

// Enqueues copies of rows into a tile: source(row) is a row's address, or null for zeros. Columns
// from dim on (a multiple of 8) become zeros.
template <int kThreads, class T, int kRows, int kColumns, class Source>
__device__ inline void fetch(const Matrix<T, kRows, kColumns>& to, int dim, const void* anywhere,
                             Source&& source) {
  using My = Copies<kThreads, T, kRows, kColumns>;
#pragma unroll
  for (int row = My::row(); row < kRows; row += My::kRowsAtOnce) {
    const T* from = source(row);
#pragma unroll
    for (int column = My::column(); column < kColumns; column += My::kLanes * kChunk) {
      const bool valid = from != nullptr && column < dim;
      copy16_async(to.at(row, column), valid ? from + column : anywhere, valid);
    }
  }
}

// The rows of `hull` in each of the blocks that cover it: only the first and the last block have
// others. Blocks are counted in 32 bits, which is enough for 2^31 of them.
template <int kRows>
class BlockRows {
 public:
  __device__ explicit BlockRows(Range hull)
      : first_(static_cast<int>(hull.begin / kRows)),
        last_(static_cast<int>((hull.end - 1) / kRows)),
        begin_(static_cast<int>(hull.begin % kRows)),
        end_(static_cast<int>((hull.end - 1) % kRows) + 1) {}
  __device__ LocalRange of(int block) const {
    return {block == first_ ? begin_ : 0, block == last_ ? end_ : kRows};
  }

 private:
  int first_, last_, begin_, end_;
};

// Tiles of kRows rows that lie `stride` elements apart, one block of rows after the other. Keeps
// the calling thread's own address, so that a block costs additions only.
template <int kThreads, class T, int kRows, int kColumns>
class Stream {
 public:
  // data: row 0 of block 0.
  __device__ Stream(const T* data, int64_t stride, int dim, int block)
      : from_(data + (static_cast<int64_t>(block) * kRows + My::row()) * stride + My::column()),
        stride_(stride),
        dim_(dim) {}
  __device__ void move(int blocks) { from_ += blocks * kRows * stride_; }

  // Enqueues copies of the block; rows outside of `rows` and columns from dim on become zeros and
  // are not read.
  __device__ void fetch(const Matrix<T, kRows, kColumns>& to, LocalRange rows) const {
    const T* from = from_;
#pragma unroll
    for (int r = 0; r < kRows; r += My::kRowsAtOnce) {
      const bool here = rows.contains(My::row() + r);
#pragma unroll
      for (int c = 0; c < kColumns; c += My::kLanes * kChunk) {
        copy16_async(to.at(My::row(), My::column()) + r * Matrix<T, kRows, kColumns>::kStride + c,
                     from + c, here && My::column() + c < dim_);
      }
      from += My::kRowsAtOnce * stride_;
    }
  }

 private:
  using My = Copies<kThreads, T, kRows, kColumns>;
  const T* from_;
  int64_t stride_;
  int dim_;
};

// Operand a, 16 rows from `row`, 16 columns from `column`.
template <class T, int kRows, int kColumns>
__device__ inline void load_a(uint32_t (&a)[4], const Matrix<T, kRows, kColumns>& m, int row,
                              int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(a, m.at(row + lane % 16, column + lane / 16 * 8));
}
// The transpose of it: operand a is m's 16 columns from `column` as rows, its rows as columns.
template <class T, int kRows, int kColumns>
__device__ inline void load_a_transposed(uint32_t (&a)[4], const Matrix<T, kRows, kColumns>& m,
                                         int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_transposed(a, m.at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
}
// Operands b of a b^T: 16 rows of m from `row` are two times 8 columns of the product, 16 columns
// from `column` its depth. b[0], b[1] belong to the first 8 rows.
template <class T, int kRows, int kColumns>
__device__ inline void load_b(uint32_t (&b)[4], const Matrix<T, kRows, kColumns>& m, int row,
                              int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(b, m.at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
}
// Operands b of a b: 16 columns of m from `column` are two times 8 columns of the product, 16 rows
// from `row` its depth.
template <class T, int kRows, int kColumns>
__device__ inline void load_b_transposed(uint32_t (&b)[4], const Matrix<T, kRows, kColumns>& m,
                                         int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_transposed(b, m.at(row + lane / 8 % 2 * 8 + lane % 8, column + lane / 16 * 8));
}

// sums (16 x 8 kTiles) += 16 rows of a from `row` times the transpose of b.
template <class T, int kA, int kB, int kColumns, int kTiles>
__device__ inline void multiply_transposed(float (&sums)[kTiles][4],
                                           const Matrix<T, kA, kColumns>& a, int row,
                                           const Matrix<T, kB, kColumns>& b) {
  static_assert(kB == 8 * kTiles);
#pragma unroll
  for (int depth = 0; depth < kColumns; depth += 16) {
    uint32_t x[4];
    load_a(x, a, row, depth);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t y[4];
      load_b(y, b, 8 * n, depth);
      multiply_add<T>(sums[n], x, y[0], y[1]);
      multiply_add<T>(sums[n + 1], x, y[2], y[3]);
    }
  }
}

// sums (16 x 8 kTiles) += p (16 x 8 kDepth, fp32 sums of a product, rounded here) times b.
template <class T, int kB, int kColumns, int kDepth, int kTiles>
__device__ inline void multiply_rounded(float (&sums)[kTiles][4], const float (&p)[kDepth][4],
                                        const Matrix<T, kB, kColumns>& b) {
  static_assert(kB == 8 * kDepth && kColumns == 8 * kTiles);
#pragma unroll
  for (int k = 0; k < kDepth; k += 2) {
    const uint32_t x[4] = {pack<T>(p[k][0], p[k][1]), pack<T>(p[k][2], p[k][3]),
                           pack<T>(p[k + 1][0], p[k + 1][1]), pack<T>(p[k + 1][2], p[k + 1][3])};
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t y[4];
      load_b_transposed(y, b, 8 * k, 8 * n);
      multiply_add<T>(sums[n], x, y[0], y[1]);
      multiply_add<T>(sums[n + 1], x, y[2], y[3]);
    }
  }
}

template <int kTiles>
__device__ inline void clear(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
  }
}

// Where the calling thread's numbers of a 16x8 product lie: rows top() and top() + 8, columns
// left() and the next.
__device__ inline int top() {
  return static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ inline int left() {
  return static_cast<int>(threadIdx.x) % 4 * 2;
}

// Writes 16 rows of sums, times factor[] of rows top() and top() + 8, rounded, through rows of
// shared memory that only this warp uses any more. target(row) is a row's address, or null.
template <class T, int kRows, int kColumns, int kTiles, class Target>
__device__ inline void store_rows(const float (&sums)[kTiles][4], const float (&factor)[2],
                                  const Matrix<T, kRows, kColumns>& through, int row, int dim,
                                  Target&& target) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    store_pair(through.at(row + top(), 8 * n + left()), sums[n][0] * factor[0],
               sums[n][1] * factor[0]);
    store_pair(through.at(row + top() + 8, 8 * n + left()), sums[n][2] * factor[1],
               sums[n][3] * factor[1]);
  }
  __syncwarp();
  for (int n = lane; n < 16 * kTiles; n += 32) {
    const int r = n / kTiles, column = n % kTiles * kChunk;
    T* to = target(row + r);
    if (to != nullptr && column < dim) copy16(to + column, through.at(row + r, column));
  }
}

}  // namespace heddle::kernels::cuda
