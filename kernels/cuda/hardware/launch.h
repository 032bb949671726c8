// Starting kernels. All shared memory of Heddle's kernels is dynamic.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace heddle::kernels::cuda {

inline constexpr size_t kPlainSharedBytes = 48 * 1024;  // more has to be asked for

// Enqueues kernel(arguments...) on a one-dimensional grid and returns what the runtime says.
template <class... P, class... A>
[[nodiscard]] cudaError_t launch(void (*kernel)(P...), unsigned blocks, unsigned threads,
                                 size_t shared_bytes, cudaStream_t stream, const A&... arguments) {
  if (shared_bytes > kPlainSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}

}  // namespace heddle::kernels::cuda
