// cp.async: 16 bytes from device to shared memory without a register. Bytes arrive for the thread
// that copied them at wait_copies, for others at the barrier after it.
#pragma once

#include "kernels/cuda/hardware/call_site.h"

namespace heddle::kernels::cuda {

// Both addresses are multiples of 16. !valid: writes zeros and reads nothing.
__device__ inline void copy16_async(void* shared, const void* global, bool valid HEDDLE_CALL_SITE) {
#if defined(__CUDACC__)
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  ::heddle::emulator::copy_async(shared, global, 16, valid ? 16 : 0, where);
#endif
}

// Makes a group of the copies since the last one.
__device__ inline void commit_copies(HEDDLE_NO_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#else
  ::heddle::emulator::commit_async(where);
#endif
}

// Waits for all groups of this thread but the newest kLeft.
template <int kLeft>
__device__ inline void wait_copies(HEDDLE_NO_CALL_SITE) {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
#else
  ::heddle::emulator::wait_async(kLeft, where);
#endif
}

}  // namespace heddle::kernels::cuda
