// The host side of the kernels: what a row of the table of variants calls. Each is instantiated in
// the .cu file of its element type.
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace heddle::kernels::cuda {

using WorkspaceBytes = size_t(const AttentionProblem&);
using Run = cudaError_t(const AttentionProblem&, const AttentionPointers&, cudaStream_t);

// plain.cu
template <int kDim>
struct Plain {
  static Run forward, backward, decode;
  static WorkspaceBytes decode_workspace;
};

// mma_bf16.cu, mma_fp16.cu
template <class T, int kDim>
struct MmaForward {
  static Run forward, decode;
  static WorkspaceBytes decode_workspace;
};
template <class T, int kDim>
struct MmaBackward {
  static Run with_atomics, in_order;
};

// Sizes that do not depend on the kernel: nothing; delta; delta and fp32 sums of dq.
WorkspaceBytes no_workspace, delta_workspace, delta_and_dq_workspace;

}  // namespace heddle::kernels::cuda
