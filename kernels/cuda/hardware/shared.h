// The dynamic shared memory of the running block, 16-byte aligned.
#pragma once

#include "kernels/cuda/hardware/call_site.h"

namespace heddle::kernels::cuda {

__device__ inline unsigned char* shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(16) unsigned char heddle_shared[];
  return heddle_shared;
#else
  return ::heddle::emulator::dynamic_shared();
#endif
}

}  // namespace heddle::kernels::cuda
