// ldmatrix.x4: four 8x8 matrices of 16-bit elements from shared memory into a warp's registers.
// Lanes 8i..8i+7 give the 16-byte aligned rows of matrix i; register i gets of it row lane / 4,
// columns 2 (lane % 4) and the next (transposed: rows and columns swapped).
#pragma once

#include "kernels/cuda/hardware/call_site.h"

namespace heddle::kernels::cuda {

__device__ inline void load_matrices(uint32_t (&r)[4], const void* row HEDDLE_CALL_SITE) {
#if defined(__CUDACC__)
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
#else
  ::heddle::emulator::ldmatrix(r, row, false, where);
#endif
}

__device__ inline void load_matrices_transposed(uint32_t (&r)[4],
                                                const void* row HEDDLE_CALL_SITE) {
#if defined(__CUDACC__)
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
#else
  ::heddle::emulator::ldmatrix(r, row, true, where);
#endif
}

}  // namespace heddle::kernels::cuda
