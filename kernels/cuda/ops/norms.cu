// Smear and the residual stream: a warp takes a row, which it reads twice.
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/ops/parts.cuh"

namespace heddle::kernels::cuda::ops {
namespace {

constexpr int64_t kLeastRows = kWarps;  // of a piece
constexpr int kSmearSums = kSmearInputs + 1;

__global__ void __launch_bounds__(kThreads) smear_rows(Smear op) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float lambda = *op.lambda;
  for_my_rows(op.n, [&](int64_t n) {
    const float *u = op.u + n * op.channels, *before = u - op.channels;
    float* x = op.x + n * op.channels;
    if (n % op.seq_len == 0) {
      before = op.prev ? op.prev + n / op.seq_len * op.channels : nullptr;
    }
    float gate = 0.0f;
    if (before) {
      gate = sigmoid(warp_sum(lane < kSmearInputs ? u[lane] * op.w[lane] : 0.0f));
    }
    if (lane == 0) op.gate[n] = gate;
    const float weight = lambda * gate;
    for (int64_t c = lane; c < op.channels; c += 32) {
      x[c] = before ? u[c] + weight * before[c] : u[c];
    }
  });
}

// du_t = dx_t + lambda gate_{t+1} dx_{t+1}, and in the first 24 channels + w ds_t, with ds the
// gradient of the gate's argument: lambda (dx_t . u_{t-1}) gate (1 - gate). Lane i < 24 sums dw[i],
// lane 24 dlambda.
__global__ void __launch_bounds__(kThreads) smear_grad_rows(SmearGrad op, double* partial) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float lambda = *op.lambda;
  double sum = 0;
  for_my_rows(op.n, [&](int64_t n) {
    const float *dx = op.dx + n * op.channels, *u = op.u + n * op.channels;
    float* du = op.du + n * op.channels;
    const int64_t t = n % op.seq_len;
    const bool last = t + 1 == op.seq_len;
    const float weight = last ? 0.0f : lambda * op.gate[n + 1];
    float ds = 0.0f;
    if (t > 0) {
      const float* before = u - op.channels;
      float along = 0.0f;
      for (int64_t c = lane; c < op.channels; c += 32) along += dx[c] * before[c];
      along = warp_sum(along);
      const float gate = op.gate[n];
      ds = lambda * along * gate * (1.0f - gate);
      if (lane < kSmearInputs) sum += static_cast<double>(ds) * u[lane];
      if (lane == kSmearInputs) sum += static_cast<double>(gate) * along;
    }
    for (int64_t c = lane; c < op.channels; c += 32) {
      float d = last ? dx[c] : dx[c] + weight * dx[op.channels + c];
      if (c < kSmearInputs) d += ds * op.w[c];
      du[c] = d;
    }
  });
  write_lane_sums(sum, kSmearSums, partial);
}

__global__ void __launch_bounds__(kThreads) mix_norm_rows(MixNorm op) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float a = op.a ? *op.a : 1.0f, b = op.z ? op.sign * *op.b : 0.0f;
  for_my_rows(op.n, [&](int64_t n) {
    const int64_t at = n * op.channels;
    float squares = 0.0f;
    for (int64_t c = lane; c < op.channels; c += 32) {
      float mixed = op.x[at + c];
      if (op.y) {
        mixed *= a;
        if (op.z) mixed += b * op.z[at + c];
        op.y[at + c] = mixed;
      }
      squares += mixed * mixed;
    }
    const float rstd = reciprocal_rms(warp_sum(squares), op.channels, op.eps);
    if (lane == 0) op.rstd[n] = rstd;
    const float* mixed = op.y ? op.y : op.x;
    for (int64_t c = lane; c < op.channels; c += 32) op.h[at + c] = mixed[at + c] * rstd;
  });
}

__global__ void __launch_bounds__(kThreads) mix_norm_grad_rows(MixNormGrad op, double* partial) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float a = op.a ? *op.a : 1.0f, b = op.b ? op.sign * *op.b : 0.0f;
  double sum_x = 0, sum_z = 0;
  for_my_rows(op.n, [&](int64_t n) {
    const int64_t at = n * op.channels;
    float along = 0.0f;
    for (int64_t c = lane; c < op.channels; c += 32) along += op.dh[at + c] * op.h[at + c];
    const float mean = warp_sum(along) / static_cast<float>(op.channels);
    const float rstd = op.rstd[n];
    float along_x = 0.0f, along_z = 0.0f;
    for (int64_t c = lane; c < op.channels; c += 32) {
      float total = rstd * (op.dh[at + c] - op.h[at + c] * mean);
      if (op.dy) total += op.dy[at + c];
      if (op.a) along_x += total * op.x[at + c];
      if (op.b) {
        along_z += total * op.z[at + c];
        op.dz[at + c] += b * total;
      }
      op.dx[at + c] = a * total;
    }
    sum_x += along_x;
    sum_z += along_z;
  });
  if (!partial) return;
  sum_x = warp_sum(sum_x);
  sum_z = warp_sum(sum_z);
  write_lane_sums(lane == 0 ? sum_x : sum_z, 2, partial);
}

}  // namespace

cudaError_t smear_forward(const Smear& op, cudaStream_t stream) {
  return launch(smear_rows, blocks_for(op.n, kWarps), kThreads, 0, stream, op);
}

size_t smear_backward_workspace(int64_t n) {
  Pieces pieces(nullptr);
  pieces.take<double>(pieces_of(n, kLeastRows) * kSmearSums);
  return pieces.used();
}
cudaError_t smear_backward(const SmearGrad& op, void* workspace, cudaStream_t stream) {
  const int64_t pieces = pieces_of(op.n, kLeastRows);
  auto* partial = Pieces(workspace).take<double>(pieces * kSmearSums);
  cudaError_t error = launch(smear_grad_rows, static_cast<unsigned>(pieces), kThreads,
                             kLaneSumBytes, stream, op, partial);
  if (error != cudaSuccess) return error;
  error = enqueue_add_pieces(partial, pieces, kSmearSums, 0, kSmearInputs, 1.0f, op.dw, stream);
  if (error != cudaSuccess) return error;
  return enqueue_add_pieces(partial, pieces, kSmearSums, kSmearInputs, 1, 1.0f, op.dlambda, stream);
}

cudaError_t mix_norm_forward(const MixNorm& op, cudaStream_t stream) {
  return launch(mix_norm_rows, blocks_for(op.n, kWarps), kThreads, 0, stream, op);
}

size_t mix_norm_backward_workspace(int64_t n) {
  Pieces pieces(nullptr);
  pieces.take<double>(pieces_of(n, kLeastRows) * 2);
  return pieces.used();
}
cudaError_t mix_norm_backward(const MixNormGrad& op, void* workspace, cudaStream_t stream) {
  if (!op.a && !op.b) {
    double* none = nullptr;
    return launch(mix_norm_grad_rows, blocks_for(op.n, kWarps), kThreads, 0, stream, op, none);
  }
  const int64_t pieces = pieces_of(op.n, kLeastRows);
  auto* partial = Pieces(workspace).take<double>(pieces * 2);
  cudaError_t error = launch(mix_norm_grad_rows, static_cast<unsigned>(pieces), kThreads,
                             kLaneSumBytes, stream, op, partial);
  if (error == cudaSuccess && op.a) {
    error = enqueue_add_pieces(partial, pieces, 2, 0, 1, 1.0f, op.da, stream);
  }
  if (error == cudaSuccess && op.b) {
    error = enqueue_add_pieces(partial, pieces, 2, 1, 1, op.sign, op.db, stream);
  }
  return error;
}

}  // namespace heddle::kernels::cuda::ops
