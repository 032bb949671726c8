// Host side of the tensor core kernels of one element type; instantiated in mma_bf16.cu and
// mma_fp16.cu.
#pragma once

#include "kernels/cuda/attention/backward_mma.cuh"
#include "kernels/cuda/attention/enqueue.cuh"
#include "kernels/cuda/attention/forward_mma.cuh"
#include "kernels/cuda/attention/launchers.h"

namespace heddle::kernels::cuda {

template <class T, int kDim>
cudaError_t MmaForward<T, kDim>::forward(const AttentionProblem& p, const AttentionPointers& at,
                                         cudaStream_t stream) {
  using Tile = ForwardTile<T, kDim, 4>;
  return run_attend<T>(attend_mma<T, kDim, 4>, Tile::kRows, Tile::kKeys, Tile::kThreads,
                       Tile::kBytes, p, at, stream);
}

template <class T, int kDim>
cudaError_t MmaForward<T, kDim>::decode(const AttentionProblem& p, const AttentionPointers& at,
                                        cudaStream_t stream) {
  using Tile = ForwardTile<T, kDim, 1>;
  return run_attend<T>(attend_mma<T, kDim, 1>, Tile::kRows, Tile::kKeys, Tile::kThreads,
                       Tile::kBytes, p, at, stream);
}

template <class T, int kDim>
size_t MmaForward<T, kDim>::decode_workspace(const AttentionProblem& p) {
  using Tile = ForwardTile<T, kDim, 1>;
  return split_workspace(p, Tile::kRows, Tile::kKeys);
}

template <class T, int kDim>
cudaError_t MmaBackward<T, kDim>::with_atomics(const AttentionProblem& p,
                                               const AttentionPointers& at, cudaStream_t stream) {
  using Tile = BackwardTile<T, kDim>;
  Arguments a = make_arguments(p, at);
  Pieces pieces(at.workspace);
  const int64_t rows = query_rows(p);
  a.delta = pieces.floats(rows);
  a.dq_sum = pieces.floats(rows * p.head_dim);
  cudaError_t error =
      cudaMemsetAsync(a.dq_sum, 0, static_cast<size_t>(rows * p.head_dim) * sizeof(float), stream);
  if (error == cudaSuccess) error = launch_rows(row_deltas<T>, p, stream, a);
  if (error == cudaSuccess) {
    error = launch_tiles(key_gradients_mma<T, kDim, true>, key_tiles(p, Tile::kKeys),
                         Tile::kThreads, Tile::kBytes, stream, a);
  }
  if (error == cudaSuccess) error = launch_rows(round_dq<T>, p, stream, a);
  return error;
}

template <class T, int kDim>
cudaError_t MmaBackward<T, kDim>::in_order(const AttentionProblem& p, const AttentionPointers& at,
                                           cudaStream_t stream) {
  using Tile = BackwardTile<T, kDim>;
  Arguments a = make_arguments(p, at);
  a.delta = Pieces(at.workspace).floats(query_rows(p));
  cudaError_t error = launch_rows(row_deltas<T>, p, stream, a);
  if (error == cudaSuccess) {
    error = launch_tiles(key_gradients_mma<T, kDim, false>, key_tiles(p, Tile::kKeys),
                         Tile::kThreads, Tile::kBytes, stream, a);
  }
  if (error == cudaSuccess) {
    error = launch_tiles(query_gradients_mma<T, kDim>, query_tiles(p, Tile::kRows), Tile::kThreads,
                         Tile::kDqBytes, stream, a);
  }
  return error;
}

#define HEDDLE_INSTANTIATE_MMA(T)     \
  template struct MmaForward<T, 64>;  \
  template struct MmaForward<T, 96>;  \
  template struct MmaForward<T, 128>; \
  template struct MmaForward<T, 256>; \
  template struct MmaBackward<T, 64>; \
  template struct MmaBackward<T, 96>; \
  template struct MmaBackward<T, 128>

}  // namespace heddle::kernels::cuda
