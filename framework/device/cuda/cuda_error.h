// What the CUDA runtime and cuBLASLt return, as heddle::Error.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <string>

#include "framework/core/error.h"

namespace heddle {

// Throws heddle::Error (environment): "[cuda] <what>: <name> (<text>)", "[memory] ..." when there
// is none left.
void check_cuda(cudaError_t error, const char* what);
void check_cublas(cublasStatus_t status, const char* what);

}  // namespace heddle
