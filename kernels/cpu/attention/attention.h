// Flash attention for the CPU in fp32: forward, backward and decode with a cache.
//
// A kernel here is a set of tasks. It allocates nothing, starts no thread and shares nothing
// between tasks but the read-only inputs, so a caller with a pool of W workers does
//
//   const Launch launch = kernels.plan_forward(problem);
//   for each phase p of launch.phases, one after the other:
//     run every task t of [0, launch.tasks[p]) once, in any order, on any worker w:
//       kernels.run_forward(problem, args, {p, t, shared, worker_workspace[w]});
//
// Tasks are numbered heaviest first: hand them out in order. The result has the same bits for any
// number of workers and any order. Results do not depend on what the workspaces hold before.
//
// Meaning of positions, windows and rows that see nothing: kernels/common/attention_ranges.h and
// kernels/reference/attention.h. Work and memory follow the window: never q_len * k_len.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::kernels::cpu {

// Element (b, t, h, d) of a tensor lies at b*batch + t*token + h*head + d (elements, not bytes).
struct TensorStrides {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;
};

inline constexpr int64_t kMaxHeadDim = 256;
inline constexpr int64_t kWorkspaceAlign = 64;

// Limits: 1 <= head_dim <= 256, n_head a multiple of n_kv_head, lengths >= 0 and below 2^30,
// window_left >= -1. Only the strides of tensors that a call uses are read.
struct AttentionProblem {
  int64_t batch = 1;
  int64_t q_len = 0;
  int64_t k_len = 0;  // decode: capacity of the cache
  int64_t n_head = 1;
  int64_t n_kv_head = 1;
  int64_t head_dim = 1;
  float scale = 1.0f;
  bool causal = true;
  int64_t window_left = -1;
  int64_t q_pos0 = 0;  // decode: not used
  int64_t k_pos0 = 0;  // decode: not used
  TensorStrides q, k, v, out;
  TensorStrides dout, dq, dk, dv;
  int64_t lse_stride_batch = 0;  // lse is (B, H, q_len) with token stride 1
  int64_t lse_stride_head = 0;
};

struct ForwardArgs {
  const float* q = nullptr;  // (B, q_len, H, D)
  const float* k = nullptr;  // (B, k_len, K, D)
  const float* v = nullptr;  // (B, k_len, K, D)
  float* out = nullptr;      // (B, q_len, H, D)
  float* lse = nullptr;      // (B, H, q_len), natural logarithm; null: not wanted
};

struct BackwardArgs {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* out = nullptr;   // as the forward gave it
  const float* lse = nullptr;   // likewise
  const float* dout = nullptr;  // (B, q_len, H, D)
  float* dq = nullptr;          // (B, q_len, H, D), overwritten
  float* dk = nullptr;          // (B, k_len, K, D), overwritten, summed over the group
  float* dv = nullptr;          // likewise
};

struct DecodeArgs {
  const float* q = nullptr;  // (B, q_len, H, D), the newest q_len tokens of each row
  const float* k = nullptr;  // cache (B, k_len, K, D), already appended to
  const float* v = nullptr;
  const int32_t* kv_len = nullptr;  // (B) valid tokens of each row, 0 <= kv_len <= k_len
  float* out = nullptr;
  float* lse = nullptr;  // null: not wanted
};

struct Launch {
  int phases = 1;             // all tasks of one phase end before the next begins
  int64_t tasks[2] = {0, 0};  // per phase
  size_t shared_bytes = 0;    // one area for the call
  size_t worker_bytes = 0;    // one area for each worker; both aligned to kWorkspaceAlign
};

struct TaskContext {
  int phase = 0;
  int64_t task = 0;
  void* shared = nullptr;
  void* worker = nullptr;
};

enum class Isa {
  kBaseline,     // x86-64-v2, 4 lanes
  kAvx2,         // AVX2 + FMA, 8 lanes
  kAvx512,       // AVX-512 F/BW/VL/DQ, 16 lanes
  kAvx512Logic,  // the 16-lane source on AVX2 instructions: runs that logic on machines without
};

struct AttentionKernels {
  const char* isa;
  Launch (*plan_forward)(const AttentionProblem&);
  void (*run_forward)(const AttentionProblem&, const ForwardArgs&, const TaskContext&);
  Launch (*plan_backward)(const AttentionProblem&);
  void (*run_backward)(const AttentionProblem&, const BackwardArgs&, const TaskContext&);
  Launch (*plan_decode)(const AttentionProblem&);
  void (*run_decode)(const AttentionProblem&, const DecodeArgs&, const TaskContext&);
  // FLOP per second of a burst of independent FMAs (mul + add on the baseline) on this thread
  // lasting about `seconds`.
  double (*measure_peak)(double seconds);
};

// Whether this processor and operating system can run the object.
bool isa_available(Isa isa);

// The kernels of one ISA. Calling them where isa_available() is false is an illegal instruction.
const AttentionKernels& attention_kernels(Isa isa);

// The best available ISA, or the one that HEDDLE_CPU_ISA=baseline|avx2|avx512|avx512_logic names.
// A name that is unknown or not available here is not obeyed; *refused then points to it.
Isa select_isa(const char** refused = nullptr);

}  // namespace heddle::kernels::cpu
