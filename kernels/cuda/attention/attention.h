// Flash attention on CUDA: forward, backward and decode, as a table of variants.
//
// What the numbers mean is the reference's contract (kernels/reference/attention.h); which keys a
// query sees, and so which blocks a tile visits, is kernels/common/attention_ranges.h, the same as
// on the CPU. Tensors are (batch, token, head, dim) with strides in elements, dim contiguous; lse
// is fp32, natural logarithm. Query heads of a kv head are rows of one tile, so that keys and
// values are read once per group.
//
// Nothing here allocates or synchronises; a call only enqueues on its stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/common/attention_ranges.h"

namespace heddle::kernels::cuda {

enum class Element { kF32, kF16, kBf16 };
enum class Operation { kForward, kBackward, kDecode };

struct TensorStrides {
  int64_t batch = 0, token = 0, head = 0;
};

struct AttentionProblem {
  Operation op = Operation::kForward;
  Element element = Element::kF32;
  bool deterministic = false;  // the same bits every time
  int64_t batch = 0;
  int n_head = 1, n_kv_head = 1, head_dim = 1;
  float scale = 1.0f;
  // Decode: k_len is the capacity of the cache, q_pos0 and k_pos0 are not used; row b holds
  // kv_len[b] keys at positions 0.. and its queries stand at its end.
  AttentionMask mask;
  TensorStrides q, k, v, out, dout, dq, dk, dv;
  int64_t lse_batch = 0, lse_head = 0;
  int64_t align_bytes = 4;  // of every address and row
  int arch = 80;            // 10 * major + minor of the device
  int sms = 108;
  size_t shared_limit = 163 * 1024;  // bytes that a block can have
};

// All on the device. lse may be null in forward and decode.
struct AttentionPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const int32_t* kv_len = nullptr;  // decode: (B), clamped to the capacity
  void* workspace = nullptr;        // 256-byte aligned
};

// One kernel, or the kernels of one backward pass.
struct Variant {
  const char* name;
  Operation op;
  Element element;
  int least_arch;
  int most_head_dim;      // smaller ones are padded to it in shared memory
  int head_dim_multiple;
  int align_bytes;        // of addresses and of rows in memory
  bool deterministic;
  int rows, keys, warps;  // of a tile
  size_t shared_bytes;    // of a block, the largest of its kernels
  size_t (*workspace_bytes)(const AttentionProblem&);
  cudaError_t (*run)(const AttentionProblem&, const AttentionPointers&, cudaStream_t);
};

// In the order of preference.
std::span<const Variant> variants();

// Why a variant does not take a problem.
enum class Misfit {
  kNone,
  kOperation,
  kElement,
  kArch,
  kHeadDim,
  kAlignment,
  kDeterminism,
  kShared
};
Misfit misfit(const Variant& variant, const AttentionProblem& problem);
// The first that fits; null when none does.
const Variant* choose(const AttentionProblem& problem);

// Over how many blocks of keys' ranges a decode step spreads the keys of one row.
int decode_splits(const AttentionProblem& problem, int tile_rows, int tile_keys);

// The grid of the largest kernel; a launch takes at most 2^31 - 1 blocks.
int64_t grid_blocks(const Variant& variant, const AttentionProblem& problem);

}  // namespace heddle::kernels::cuda
