// What the kernels of this folder share: sums over a warp and a block, rows by warps, elements by
// threads, and sums of many rows in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/hardware/launch.h"
#include "kernels/cuda/hardware/shared.h"

namespace heddle::kernels::cuda::ops {

inline constexpr int kWarps = 4;  // of a block that works row by row
inline constexpr unsigned kThreads = kWarps * 32;
inline constexpr int64_t kMostBlocks = 1 << 16;  // further rows and elements are reached by striding
inline constexpr int64_t kMostPieces = 1024;     // of a sum over rows: eight blocks for every SM

inline int64_t pieces_of(int64_t n, int64_t least) {
  const int64_t pieces = n / least;
  return pieces < 1 ? 1 : pieces > kMostPieces ? kMostPieces : pieces;
}
inline unsigned blocks_for(int64_t n, int64_t each) {
  const int64_t blocks = (n + each - 1) / each;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

// Hands out pieces of a workspace; from null it only counts.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return memory_ ? reinterpret_cast<T*>(memory_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  char* memory_;
  size_t used_ = 0;
};

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// The sum over all threads of the block, to every thread. Uses the first 32 T of shared memory.
template <class T>
__device__ inline T block_sum(T x) {
  T* shared = reinterpret_cast<T*>(shared_memory());
  x = warp_sum(x);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  T total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += shared[w];
  return total;
}
inline constexpr size_t kBlockSumBytes = 32 * sizeof(double);

// f(n) for every row n, by the whole warp.
template <class F>
__device__ inline void for_my_rows(int64_t rows, F&& f) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; n < rows;
       n += stride) {
    f(n);
  }
}

// The block's part of up to 32 sums, one to a lane: partial[block * width + lane].
inline constexpr size_t kLaneSumBytes = kWarps * 32 * sizeof(double);
__device__ inline void write_lane_sums(double x, int width, double* partial) {
  double* shared = reinterpret_cast<double*>(shared_memory());
  shared[threadIdx.x] = x;
  __syncthreads();
  if (threadIdx.x >= static_cast<unsigned>(width)) return;
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared[w * 32 + threadIdx.x];
  partial[static_cast<int64_t>(blockIdx.x) * width + threadIdx.x] = total;
}

// Block j: to[j] += factor * sum over pieces of partial[piece * width + first + j].
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_pieces(const T* partial, int64_t pieces, int64_t width, int64_t first, float factor,
               float* to) {
  T sum = 0;
  for (int64_t p = threadIdx.x; p < pieces; p += kThreads) {
    sum += partial[p * width + first + blockIdx.x];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) to[blockIdx.x] = static_cast<float>(to[blockIdx.x] + factor * sum);
}
inline cudaError_t enqueue_add_pieces(const double* partial, int64_t pieces, int64_t width,
                                      int64_t first, int64_t count, float factor, float* to,
                                      cudaStream_t stream) {
  return launch(add_pieces<double>, static_cast<unsigned>(count), kThreads, kBlockSumBytes, stream, partial,
                pieces, width, first, factor, to);
}

__device__ inline float reciprocal_rms(float squares, int64_t n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}
__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// An id of the vocabulary; 0, and a raised status, for any other.
__device__ inline int64_t checked_id(int32_t id, int64_t vocab, int* status) {
  if (id >= 0 && id < vocab) return id;
  atomicMax(status, 1);
  return 0;
}

}  // namespace heddle::kernels::cuda::ops
