// Kernels that work row by row: delta of a backward pass, the sum of a decode step's splits, and
// dq from its fp32 sums. A warp takes a row; rows beyond the grid are reached by striding.
#pragma once

#include "kernels/cuda/attention/arguments.cuh"
#include "kernels/cuda/hardware/element.h"

namespace heddle::kernels::cuda {

inline constexpr int kRowWarps = 4;  // of a block

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

// f(b, h, t) for every query row, by the whole warp.
template <class F>
__device__ inline void for_my_rows(const Arguments& a, F&& f) {
  const int64_t rows = a.batch * a.n_head * a.mask.q_len;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32; n < rows;
       n += stride) {
    f(n / a.mask.q_len / a.n_head, n / a.mask.q_len % a.n_head, n % a.mask.q_len);
  }
}

template <class T>
__global__ void __launch_bounds__(kRowWarps * 32) row_deltas(Arguments a) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for_my_rows(a, [&](int64_t b, int64_t h, int64_t t) {
    const T* out = row_at<const T>(a.at.out, a.out, b, t, h);
    const T* dout = row_at<const T>(a.at.dout, a.dout, b, t, h);
    float sum = 0.0f;
    for (int d = lane; d < a.head_dim; d += 32) sum += to_float(out[d]) * to_float(dout[d]);
    sum = warp_sum(sum);
    if (lane == 0) a.delta[row_number(a, b, h, t)] = sum;
  });
}

template <class T>
__global__ void __launch_bounds__(kRowWarps * 32) round_dq(Arguments a) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for_my_rows(a, [&](int64_t b, int64_t h, int64_t t) {
    const float* sum = a.dq_sum + row_number(a, b, h, t) * a.head_dim;
    T* dq = row_at<T>(a.at.dq, a.dq, b, t, h);
    for (int d = lane; d < a.head_dim; d += 32) dq[d] = from_float<T>(sum[d] * a.scale);
  });
}

// out = sum of the splits' out, weighted by exp(lse_s - lse). A split without a key has lse -inf
// and weight 0.
template <class T>
__global__ void __launch_bounds__(kRowWarps * 32) combine_splits(Arguments a) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t rows = a.batch * a.n_head * a.mask.q_len;
  for_my_rows(a, [&](int64_t b, int64_t h, int64_t t) {
    const int64_t n = row_number(a, b, h, t);
    float top = -INFINITY;
    for (int s = lane; s < a.splits; s += 32) top = fmaxf(top, a.part_lse[s * rows + n]);
    top = warp_max(top);
    const float base = top == -INFINITY ? 0.0f : top;
    float sum = 0.0f;
    for (int s = lane; s < a.splits; s += 32) sum += expf(a.part_lse[s * rows + n] - base);
    sum = warp_sum(sum);
    const float share = sum == 0.0f ? 0.0f : 1.0f / sum;
    T* out = row_at<T>(a.at.out, a.out, b, t, h);
    for (int d = lane; d < a.head_dim; d += 32) {
      float x = 0.0f;
      for (int s = 0; s < a.splits; ++s) {
        const float lse = a.part_lse[s * rows + n];
        if (lse == -INFINITY) continue;  // its out was not written
        x += expf(lse - base) * share * a.part_out[(s * rows + n) * a.head_dim + d];
      }
      out[d] = from_float<T>(x);
    }
    if (a.at.lse && lane == 0) a.at.lse[lse_at(a, b, h, t)] = base + logf(sum);
  });
}

}  // namespace heddle::kernels::cuda
