// Softcap, cross-entropy and its gradient: a block takes a row of logits.
#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/cuda/hardware/element.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/ops/parts.cuh"

namespace heddle::kernels::cuda::ops {
namespace {

constexpr unsigned kLossThreads = 256;
// Up to here exp(cap) * vocab fits fp32 and exp(-cap) is not lost: no maximum to subtract.
constexpr float kLargestFreeCap = 60.0f;

struct Best {
  float value;
  int32_t index;
};
__device__ inline Best better(Best a, Best b) {
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

// The largest logit and its lowest index, to every thread. Shared memory: 32 Best.
__device__ inline Best block_best(Best x) {
  for (int lane = 16; lane > 0; lane /= 2) {
    const Best other = {__shfl_xor_sync(0xffffffffu, x.value, lane),
                        __shfl_xor_sync(0xffffffffu, x.index, lane)};
    x = better(x, other);
  }
  Best* shared = reinterpret_cast<Best*>(shared_memory());
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (unsigned w = 1; w < kLossThreads / 32; ++w) x = better(x, shared[w]);
  return x;
}

__device__ inline float capped(const LossRows& op, float z) {
  return op.softcap > 0.0f ? op.softcap * tanhf(z / op.softcap) : z;
}

// G: what d loss / d z is written as; int: nothing is.
template <class G>
__global__ void __launch_bounds__(kLossThreads) loss_of_rows(LossRows op) {
  constexpr bool kGradient = !std::is_same_v<G, int>;
  for (int64_t n = blockIdx.x; n < op.rows; n += gridDim.x) {
    const float* z = op.z + n * op.ld;
    G* dz = kGradient ? static_cast<G*>(op.gradient) + n * op.gradient_ld : nullptr;
    const bool subtract = op.softcap == 0.0f || op.softcap > kLargestFreeCap;
    Best best = {-INFINITY, 0x7fffffff};
    if (subtract || op.argmax) {
      for (int64_t i = threadIdx.x; i < op.vocab; i += kLossThreads) {
        best = better(best, {z[i], static_cast<int32_t>(i)});
      }
      best = block_best(best);
      if (op.argmax && threadIdx.x == 0) op.argmax[n] = best.index < op.vocab ? best.index : 0;
    }
    if (op.targets[n] < 0) {
      if (threadIdx.x == 0) op.loss[n] = 0.0f;
      if constexpr (kGradient) {
        for (int64_t i = threadIdx.x; i < op.vocab; i += kLossThreads) dz[i] = from_float<G>(0.0f);
      }
      continue;
    }
    const int64_t target = checked_id(op.targets[n], op.vocab, op.status);
    const float shift = subtract ? capped(op, best.value) : 0.0f;
    const float logit = capped(op, z[target]);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < op.vocab; i += kLossThreads) {
      sum += expf(capped(op, z[i]) - shift);
    }
    // Behind this barrier nobody reads z but at places of its own.
    const double total = block_sum(static_cast<double>(sum));
    if (threadIdx.x == 0) {
      op.loss[n] = static_cast<float>(log(total) - (static_cast<double>(logit) - shift));
    }
    if constexpr (kGradient) {
      const float inverse = static_cast<float>(1.0 / total);
      for (int64_t i = threadIdx.x; i < op.vocab; i += kLossThreads) {
        const float y = capped(op, z[i]);
        const float t = op.softcap > 0.0f ? y / op.softcap : 0.0f;
        const float p = expf(y - shift) * inverse - (i == target ? 1.0f : 0.0f);
        dz[i] = from_float<G>(p * (1.0f - t * t));
      }
    }
  }
}

template <class G>
cudaError_t enqueue(const LossRows& op, cudaStream_t stream) {
  return launch(loss_of_rows<G>, blocks_for(op.rows, 1), kLossThreads, kBlockSumBytes, stream, op);
}

}  // namespace

cudaError_t loss_rows(const LossRows& op, cudaStream_t stream) {
  if (op.rows == 0) return cudaSuccess;
  switch (op.kind) {
    case Gradient::kF32: return enqueue<float>(op, stream);
    case Gradient::kBf16: return enqueue<__nv_bfloat16>(op, stream);
    case Gradient::kNone: break;
  }
  return enqueue<int>(op, stream);
}

}  // namespace heddle::kernels::cuda::ops
