// Rotation, norm and scale of q or k: a warp takes a head of a row, each lane its pairs (i, i + D/2).
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/ops/parts.cuh"

namespace heddle::kernels::cuda::ops {
namespace {

__device__ inline int64_t angles_at(const Rope& op, int64_t n) {
  const int64_t t = n % op.seq_len;
  const int64_t position = op.pos0 ? t + op.pos0[n / op.seq_len] : t;
  return position * (op.head_dim / 2);
}

// A rotation keeps the length, so the norm's factor is known before it.
__global__ void __launch_bounds__(kThreads) rope_norm_rows(Rope op) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t half = op.head_dim / 2;
  for_my_rows(op.n * op.heads, [&](int64_t row) {
    const int64_t n = row / op.heads;
    const int64_t angles = angles_at(op, n);
    float* x1 = op.x + n * op.ld + row % op.heads * op.head_dim;
    float* x2 = x1 + half;
    float scale = op.scale;
    if (op.norm) {
      float squares = 0.0f;
      for (int64_t i = lane; i < half; i += 32) squares += x1[i] * x1[i] + x2[i] * x2[i];
      const float rstd = reciprocal_rms(warp_sum(squares), op.head_dim, op.eps);
      if (lane == 0) op.rstd[row] = rstd;
      scale *= rstd;
    }
    for (int64_t i = lane; i < half; i += 32) {
      const float a = x1[i] * scale, b = x2[i] * scale;
      const float c = op.cos[angles + i], s = op.sin[angles + i];
      x1[i] = a * c + b * s;
      x2[i] = b * c - a * s;
    }
  });
}

// With y = scale * n, n = x * rstd: the norm's backward rstd * (scale * dy - n * mean(scale * dy .
// n)) is rstd * (scale * dy - y * mean(dy . y) / scale); then the rotation backwards.
__global__ void __launch_bounds__(kThreads)
    rope_norm_grad_rows(Rope op, const float* y, int64_t y_ld) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t half = op.head_dim / 2;
  for_my_rows(op.n * op.heads, [&](int64_t row) {
    const int64_t n = row / op.heads, column = row % op.heads * op.head_dim;
    const int64_t angles = angles_at(op, n);
    float* d1 = op.x + n * op.ld + column;
    float* d2 = d1 + half;
    const float* y1 = y + n * y_ld + column;
    const float* y2 = y1 + half;
    float scale = op.scale, along = 0.0f;
    if (op.norm) {
      float sum = 0.0f;
      for (int64_t i = lane; i < half; i += 32) sum += d1[i] * y1[i] + d2[i] * y2[i];
      const float mean = warp_sum(sum) / static_cast<float>(op.head_dim);
      const float rstd = op.rstd[row];
      along = rstd * mean / op.scale;
      scale *= rstd;
    }
    for (int64_t i = lane; i < half; i += 32) {
      const float a = d1[i] * scale - y1[i] * along;
      const float b = d2[i] * scale - y2[i] * along;
      const float c = op.cos[angles + i], s = op.sin[angles + i];
      d1[i] = a * c - b * s;
      d2[i] = a * s + b * c;
    }
  });
}

}  // namespace

cudaError_t rope_norm_forward(const Rope& op, cudaStream_t stream) {
  return launch(rope_norm_rows, blocks_for(op.n * op.heads, kWarps), kThreads, 0, stream, op);
}
cudaError_t rope_norm_backward(const Rope& op, const float* y, int64_t y_ld, cudaStream_t stream) {
  return launch(rope_norm_grad_rows, blocks_for(op.n * op.heads, kWarps), kThreads, 0, stream, op,
                y, y_ld);
}

}  // namespace heddle::kernels::cuda::ops
