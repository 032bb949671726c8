#include "framework/device/cuda/cuda_error.h"

namespace heddle {
namespace {

// An error of an earlier kernel shows up at a later call, hence the advice.
const char* remedy_for(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "lower train.device_batch_size or model.sequence_len; heddle plan shows what needs "
             "memory";
    case cudaErrorNoKernelImageForDevice:
      return "this build has no code for that GPU: it needs compute capability 8.0 or newer";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "a kernel failed; run with CUDA_LAUNCH_BLOCKING=1 to see which one, and report it";
    default:
      return "see heddle doctor";
  }
}

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw environment_error(
      error == cudaErrorMemoryAllocation ? "memory" : "cuda",
      std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")",
      remedy_for(error));
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw environment_error(
      "cuda", std::string(what) + ": cuBLASLt status " + std::to_string(static_cast<int>(status)),
      "see heddle doctor");
}

}  // namespace heddle
