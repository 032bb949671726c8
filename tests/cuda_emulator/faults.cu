#include "tests/cuda_emulator/faults.h"

#include "kernels/cuda/hardware/cp_async.h"
#include "kernels/cuda/hardware/element.h"
#include "kernels/cuda/hardware/launch.h"
#include "kernels/cuda/hardware/ldmatrix.h"
#include "kernels/cuda/hardware/mma.h"
#include "kernels/cuda/hardware/shared.h"

namespace heddle::emulator::testing {
namespace {

using namespace heddle::kernels::cuda;
using enum Seeded;

constexpr int kThreads = 64;
constexpr int kLength = 61;  // not a multiple of the block

__global__ void reverse(const float* in, float* out, int n, Seeded fault) {
  auto* s = reinterpret_cast<float*>(shared_memory());
  const int t = static_cast<int>(threadIdx.x);
  if (fault == kEarlyReturn && t >= n) return;
  for (int round = 0; round < 2; ++round) {
    const bool here = t < n || fault == kNoTailGuardOnRead;
    const float x = here ? in[t] : 0.0f;
    if (fault != kSharedUnwritten || t != 5) {
      s[fault == kSharedOutOfBounds && t == 63 ? t + 1 : t] = x + static_cast<float>(round);
    }
    if (fault == kBarrierInBranch && t < 40) __syncthreads();
    if (fault == kBarriersAtTwoPlaces) {
      if (t < 32) {
        __syncthreads();
      } else {
        __syncthreads();
      }
    } else if (fault != kNoBarrier) {
      __syncthreads();
    }
    const float* from = s + (t < n ? n - 1 - t : t);
    if (fault == kSharedMisaligned && t == 5) {
      from = reinterpret_cast<const float*>(reinterpret_cast<const char*>(from) + 2);
    }
    const float y = *from;
    if (fault == kPlainSharedSum) s[0] += y;
    if (fault != kNoBarrierBeforeReuse) __syncthreads();
    if (t < n || fault == kNoTailGuardOnWrite) out[t] = y;
  }
}

__global__ void exchange(const float* in, float* out, Seeded fault) {
  auto* s = reinterpret_cast<float*>(shared_memory());
  const int lane = static_cast<int>(threadIdx.x);
  s[lane] = in[lane];
  if (fault != kNoSyncWarp) __syncwarp();
  float x = s[(lane + 1) % 32];
  if (fault == kLaneLeavesEarly && lane == 3) return;
  if (fault == kShuffleInBranch && lane < 16) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
  } else if (fault == kMaskWithoutCaller) {
    x += __shfl_xor_sync(0x0000ffffu, x, 1);
  } else if (fault == kShuffleOfAbsentLane) {
    if (lane < 16) x += __shfl_xor_sync(0x0000ffffu, x, 16);
  } else {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
  }
  out[lane] = x;
}

// Sums of 4 tiles of 128 floats; tile n + 1 is on its way while tile n is read.
__global__ void pipeline(const float* in, float* out, int n, Seeded fault) {
  auto* s = reinterpret_cast<float*>(shared_memory());
  constexpr int kTile = 128, kTiles = 4;
  const int t = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int tile, int stage) {
    if (t < kTile / 4) {
      const int at = tile * kTile + 4 * t;
      const bool valid = at < n || fault == kCopyWithoutTailGuard;
      copy16_async(s + stage * kTile + 4 * t, in + (valid ? at : 0) + (fault == kCopyMisaligned),
                   valid);
    }
    if (fault != kNoCommit) commit_copies();
  };
  fetch(0, 0);
  float sum = 0.0f;
  for (int tile = 0; tile < kTiles; ++tile) {
    if (fault != kNoBarrierBeforeCopy) __syncthreads();
    if (tile + 1 < kTiles) {
      fetch(tile + 1, (tile + 1) % 2);
      if (fault == kWaitLeavesOneTooMany) {
        wait_copies<2>();
      } else if (fault != kNoWait) {
        wait_copies<1>();
      }
    } else if (fault != kCopyNeverWaitedFor) {
      wait_copies<0>();
    } else {
      break;
    }
    if (fault != kNoBarrierAfterWait) __syncthreads();
    const int stage = fault == kWrongStage ? (tile + 1) % 2 : tile % 2;
    sum += s[stage * kTile + t] + s[stage * kTile + 64 + t];
  }
  out[t] = sum;
}

// c (16x8) = a (16x16) b (16x8): a in rows of 16, b as rows of 8, padded to 16.
__global__ void product(const float* in, float* out, Seeded fault) {
  auto* a = reinterpret_cast<__nv_bfloat16*>(shared_memory());
  auto* b = a + 256;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 512; i += 32) a[i] = from_float<__nv_bfloat16>(in[i]);
  __syncwarp();
  if (fault == kHalfWarpProduct && lane >= 16) return;
  uint32_t x[4], y[4];
  const int shift = fault == kMisalignedMatrixRow ? 1 : 0;
  load_matrices(x, a + lane % 16 * 16 + lane / 16 * 8 + shift);
  const auto* rows = b + (lane / 8 % 2 * 8 + lane % 8) * 16 + lane / 16 * 8;
  if (fault == kNotTransposed) {
    load_matrices(y, rows);
  } else {
    load_matrices_transposed(y, rows);
  }
  if (fault == kRowsOfFragmentSwapped) {
    const uint32_t other = x[0];
    x[0] = x[1];
    x[1] = other;
  }
  float d[4] = {};
  if (fault == kSwappedOperands) {
    multiply_add<__nv_bfloat16>(d, x, y[1], y[0]);
  } else {
    multiply_add<__nv_bfloat16>(d, x, y[0], y[1]);
  }
  for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// out[i] = sum of in[i - 7 .. i], a warp per i.
__global__ void window(const float* in, float* out, Seeded fault) {
  const int lane = static_cast<int>(threadIdx.x), i = static_cast<int>(blockIdx.x);
  const int first = i - 7 - (fault == kMaskOffByOne ? 1 : 0);
  float sum = lane >= first && lane <= i ? in[lane] : 0.0f;
  if (fault != kSumNotReduced) {
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  }
  if (lane == 0) out[i] = sum;
}

__global__ void block_sums(const float* in, float* out, Seeded fault) {
  const float x = in[blockIdx.x];
  if (fault == kPlainSumOfBlocks) {
    out[0] += x;
  } else {
    atomicAdd(out, x);
  }
}

float value(int i) {
  return static_cast<float>(i * 37 % 29 - 14) / 8.0f;
}

// In and out on the device.
struct Memory {
  float *in = nullptr, *out = nullptr;
  std::vector<float> values;

  Memory(int inputs, int outputs) {
    for (int i = 0; i < inputs; ++i) values.push_back(value(i));
    if (cudaMalloc(&in, values.size() * 4) != cudaSuccess ||
        cudaMalloc(&out, static_cast<size_t>(outputs) * 4) != cudaSuccess ||
        cudaMemcpy(in, values.data(), values.size() * 4, cudaMemcpyHostToDevice) != cudaSuccess ||
        cudaMemset(out, 0, static_cast<size_t>(outputs) * 4) != cudaSuccess) {
      std::abort();
    }
  }
  ~Memory() {
    (void)cudaFree(in);
    (void)cudaFree(out);
  }
  Outcome outcome(cudaError_t error, std::vector<float> want) const {
    Outcome o{error, std::vector<float>(want.size()), std::move(want)};
    if (error == cudaSuccess) {
      o.error = cudaMemcpy(o.got.data(), out, o.got.size() * 4, cudaMemcpyDeviceToHost);
    }
    return o;
  }
};

}  // namespace

Outcome run_reverse(Seeded fault) {
  const Memory m(kLength, kLength);
  const cudaError_t error =
      launch(reverse, 1, kThreads, kThreads * 4, nullptr, m.in, m.out, kLength, fault);
  std::vector<float> want(m.values.rbegin(), m.values.rend());
  for (float& x : want) x += 1.0f;
  return m.outcome(error, want);
}

Outcome run_exchange(Seeded fault) {
  const Memory m(32, 32);
  const cudaError_t error = launch(exchange, 1, 32, 128, nullptr, m.in, m.out, fault);
  std::vector<float> want;
  for (int i = 0; i < 32; ++i) want.push_back(value((i + 1) % 32) + value(((i ^ 1) + 1) % 32));
  return m.outcome(error, want);
}

Outcome run_pipeline(Seeded fault) {
  constexpr int kHere = 452;  // of 512
  const Memory m(kHere, kThreads);
  const cudaError_t error =
      launch(pipeline, 1, kThreads, 2 * 128 * 4, nullptr, m.in, m.out, kHere, fault);
  std::vector<float> want(kThreads, 0.0f);
  for (int i = 0; i < kHere; ++i) want[static_cast<size_t>(i % 64)] += value(i);
  return m.outcome(error, want);
}

Outcome run_product(Seeded fault) {
  const Memory m(512, 128);
  const cudaError_t error = launch(product, 1, 32, 1024, nullptr, m.in, m.out, fault);
  std::vector<float> want;
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8; ++c) {
      float sum = 0.0f;
      for (int k = 0; k < 16; ++k) sum += value(r * 16 + k) * value(256 + k * 16 + c);
      want.push_back(sum);
    }
  }
  return m.outcome(error, want);
}

Outcome run_window(Seeded fault) {
  const Memory m(32, 32);
  const cudaError_t error = launch(window, 32, 32, 0, nullptr, m.in, m.out, fault);
  std::vector<float> want;
  for (int i = 0; i < 32; ++i) {
    float sum = 0.0f;
    for (int j = i < 7 ? 0 : i - 7; j <= i; ++j) sum += value(j);
    want.push_back(sum);
  }
  return m.outcome(error, want);
}

Outcome run_block_sums(Seeded fault) {
  const Memory m(16, 1);
  const cudaError_t error = launch(block_sums, 16, 1, 0, nullptr, m.in, m.out, fault);
  float sum = 0.0f;
  for (const float x : m.values) sum += x;
  return m.outcome(error, {sum});
}

Outcome run_on_host_memory() {
  const Memory m(kLength, kLength);
  std::vector<float> host(kLength, 1.0f);
  return {launch(reverse, 1, kThreads, kThreads * 4, nullptr, host.data(), m.out, kLength, kNone),
          {}, {}};
}

Outcome run_on_freed_memory() {
  Memory m(kLength, kLength);
  const float* in = m.in;
  if (cudaFree(std::exchange(m.in, nullptr)) != cudaSuccess) return {};
  return {launch(reverse, 1, kThreads, kThreads * 4, nullptr, in, m.out, kLength, kNone), {}, {}};
}

cudaError_t launch_with_shared_bytes(size_t bytes) {
  const Memory m(kLength, kLength);
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  return cudaLaunchKernelEx(&config, reverse, m.in, m.out, kLength, kNone);
}

cudaError_t launch_with_threads(unsigned threads) {
  const Memory m(kLength, kLength);
  return launch(reverse, 1, threads, kThreads * 4, nullptr, m.in, m.out, kLength, kNone);
}

}  // namespace heddle::emulator::testing
