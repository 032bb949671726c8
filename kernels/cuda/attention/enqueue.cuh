// From a problem to the arguments of kernels, and the steps that several variants share. The
// workspace is cut here, and its size is computed by the same cutting.
#pragma once

#include "kernels/cuda/attention/arguments.cuh"
#include "kernels/cuda/attention/rows.cuh"
#include "kernels/cuda/hardware/launch.h"

namespace heddle::kernels::cuda {

// Hands out pieces of the workspace; from null it only counts.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}
  float* floats(int64_t count) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(float) + 255) / 256 * 256;
    return memory_ ? reinterpret_cast<float*>(memory_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  char* memory_;
  size_t used_ = 0;
};

inline int64_t query_rows(const AttentionProblem& p) {
  return p.batch * p.n_head * p.mask.q_len;
}

inline Arguments make_arguments(const AttentionProblem& p, const AttentionPointers& at) {
  Arguments a{};
  a.at = at;
  if (p.op != Operation::kDecode) a.at.kv_len = nullptr;
  a.q = p.q, a.k = p.k, a.v = p.v, a.out = p.out;
  a.dout = p.dout, a.dq = p.dq, a.dk = p.dk, a.dv = p.dv;
  a.lse_batch = p.lse_batch, a.lse_head = p.lse_head;
  a.mask = p.mask;
  a.batch = p.batch;
  a.n_head = p.n_head, a.n_kv_head = p.n_kv_head, a.head_dim = p.head_dim;
  a.group = p.n_head / p.n_kv_head;
  a.scale = p.scale;
  a.splits = 1;
  return a;
}

inline int64_t query_tiles(const AttentionProblem& p, int rows) {
  return ceil_div(p.mask.q_len * (p.n_head / p.n_kv_head), rows) * p.batch * p.n_kv_head;
}
inline int64_t key_tiles(const AttentionProblem& p, int keys) {
  return ceil_div(p.mask.k_len, keys) * p.batch * p.n_kv_head;
}

inline void place_splits(const AttentionProblem& p, Pieces& pieces, Arguments& a) {
  if (a.splits == 1) return;
  a.part_out = pieces.floats(a.splits * query_rows(p) * p.head_dim);
  a.part_lse = pieces.floats(a.splits * query_rows(p));
}

template <class Kernel>
cudaError_t launch_tiles(Kernel* kernel, int64_t blocks, int threads, size_t shared_bytes,
                         cudaStream_t stream, const Arguments& a) {
  if (blocks == 0) return cudaSuccess;
  return launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes,
                stream, a);
}

template <class Kernel>
cudaError_t launch_rows(Kernel* kernel, const AttentionProblem& p, cudaStream_t stream,
                        const Arguments& a) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const int64_t blocks = min_i64(ceil_div(query_rows(p), kRowWarps), kMostBlocks);
  return launch_tiles(kernel, blocks, kRowWarps * 32, 0, stream, a);
}

// FORWARD: one launch. DECODE: one, or two when the keys are split.
template <class T, class Kernel>
cudaError_t run_attend(Kernel* kernel, int rows, int keys, int threads, size_t shared_bytes,
                       const AttentionProblem& p, const AttentionPointers& at,
                       cudaStream_t stream) {
  Arguments a = make_arguments(p, at);
  if (p.op == Operation::kDecode) a.splits = decode_splits(p, rows, keys);
  Pieces pieces(at.workspace);
  place_splits(p, pieces, a);
  const cudaError_t error =
      launch_tiles(kernel, query_tiles(p, rows) * a.splits, threads, shared_bytes, stream, a);
  if (error != cudaSuccess || a.splits == 1) return error;
  return launch_rows(combine_splits<T>, p, stream, a);
}

inline size_t split_workspace(const AttentionProblem& p, int rows, int keys) {
  Arguments a{};
  a.splits = decode_splits(p, rows, keys);
  Pieces pieces(nullptr);
  place_splits(p, pieces, a);
  return pieces.used();
}

}  // namespace heddle::kernels::cuda
