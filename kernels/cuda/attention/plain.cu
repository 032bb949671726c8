#include "kernels/cuda/attention/plain.cuh"

#include "kernels/cuda/attention/enqueue.cuh"
#include "kernels/cuda/attention/launchers.h"

namespace heddle::kernels::cuda {

template <int kDim>
cudaError_t Plain<kDim>::forward(const AttentionProblem& p, const AttentionPointers& at,
                                 cudaStream_t stream) {
  return run_attend<float>(plain::attend<kDim>, plain::kTile, plain::kTile, plain::kThreads,
                           plain::kAttendBytes<kDim>, p, at, stream);
}

template <int kDim>
cudaError_t Plain<kDim>::decode(const AttentionProblem& p, const AttentionPointers& at,
                                cudaStream_t stream) {
  return forward(p, at, stream);
}

template <int kDim>
size_t Plain<kDim>::decode_workspace(const AttentionProblem& p) {
  return split_workspace(p, plain::kTile, plain::kTile);
}

template <int kDim>
cudaError_t Plain<kDim>::backward(const AttentionProblem& p, const AttentionPointers& at,
                                  cudaStream_t stream) {
  Arguments a = make_arguments(p, at);
  a.delta = Pieces(at.workspace).floats(query_rows(p));
  constexpr size_t kBytes = plain::kBackwardBytes<kDim>;
  cudaError_t error = launch_rows(row_deltas<float>, p, stream, a);
  if (error != cudaSuccess) return error;
  error = launch_tiles(plain::key_gradients<kDim>, key_tiles(p, plain::kTile), plain::kThreads,
                       kBytes, stream, a);
  if (error != cudaSuccess) return error;
  return launch_tiles(plain::query_gradients<kDim>, query_tiles(p, plain::kTile), plain::kThreads,
                      kBytes, stream, a);
}

template struct Plain<64>;
template struct Plain<128>;
template struct Plain<256>;

}  // namespace heddle::kernels::cuda
