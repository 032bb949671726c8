// Matrix products through cuBLASLt. What it picks for a shape is asked once and kept, so that a
// step in which no new shape comes up allocates nothing and gets the same bits every time.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <map>

#include "framework/core/tensor.h"

namespace heddle {

class CudaBlas {
 public:
  // `workspace` is device memory for the products of `stream`. cuBLASLt starts with the first one.
  CudaBlas(cudaStream_t stream, void* workspace, size_t workspace_bytes);
  ~CudaBlas();
  CudaBlas(const CudaBlas&) = delete;
  CudaBlas& operator=(const CudaBlas&) = delete;

  // c = alpha * op(a) op(b) + beta * c, row-major. a and b are both fp32 or both bf16, c is fp32;
  // sums are fp32 (no TF32). With beta 0 what c held does not matter.
  void product(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c,
               float alpha, float beta);

 private:
  struct Plan {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using Key = std::array<int64_t, 10>;
  Plan make_plan(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c);

  cublasLtHandle_t handle_ = nullptr;
  cudaStream_t stream_;
  void* workspace_;
  size_t workspace_bytes_;
  std::map<Key, Plan> plans_;
};

}  // namespace heddle
