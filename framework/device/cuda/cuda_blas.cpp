#include "framework/device/cuda/cuda_blas.h"

#include "framework/device/cuda/cuda_error.h"

namespace heddle {
namespace {

// The largest power of two up to 256 that divides the address: what the choice may rely on.
uint32_t alignment(const Matrix& m) {
  const auto address = reinterpret_cast<uintptr_t>(m.data) | 256u;
  return static_cast<uint32_t>(address & (~address + 1));
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// A row-major matrix as cuBLASLt sees it: the transposed one, by columns.
cublasLtMatrixLayout_t make_layout(const Matrix& m) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&layout, data_type(m.dtype),
                                          static_cast<uint64_t>(m.cols),
                                          static_cast<uint64_t>(m.rows), m.ld),
               "describing a matrix");
  return layout;
}

void set_transpose(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t which,
                   bool transposed) {
  const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check_cublas(cublasLtMatmulDescSetAttribute(operation, which, &value, sizeof value),
               "describing a product");
}

}  // namespace

CudaBlas::CudaBlas(cudaStream_t stream, void* workspace, size_t workspace_bytes)
    : stream_(stream), workspace_(workspace), workspace_bytes_(workspace_bytes) {}

CudaBlas::~CudaBlas() {
  for (auto& [key, plan] : plans_) {
    cublasLtMatmulDescDestroy(plan.operation);
    for (cublasLtMatrixLayout_t layout : {plan.first, plan.second, plan.result}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
  }
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

// By columns the product is c^T = op(b)^T op(a)^T, and b by columns is b^T already.
CudaBlas::Plan CudaBlas::make_plan(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b,
                                   const Matrix& c) {
  if (handle_ == nullptr) check_cublas(cublasLtCreate(&handle_), "starting cuBLASLt");
  Plan plan;
  check_cublas(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a product");
  set_transpose(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, trans_b);
  set_transpose(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, trans_a);
  plan.first = make_layout(b);
  plan.second = make_layout(a);
  plan.result = make_layout(c);

  cublasLtMatmulPreference_t preference = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&preference), "choosing a product");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value),
                 "choosing a product");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.first, plan.second, plan.result,
                                     plan.result, preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  check_cublas(status, "choosing a product");
  if (count == 0) check_cublas(CUBLAS_STATUS_NOT_SUPPORTED, "choosing a product");
  plan.algorithm = found.algo;
  return plan;
}

void CudaBlas::product(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b,
                       const Matrix& c, float alpha, float beta) {
  const int64_t inner = trans_a ? a.rows : a.cols;
  HEDDLE_CHECK(a.dtype == b.dtype && c.dtype == DType::kF32 &&
                   c.rows == (trans_a ? a.cols : a.rows) &&
                   c.cols == (trans_b ? b.rows : b.cols) && inner == (trans_b ? b.cols : b.rows),
               "matmul: shapes or types do not fit");
  if (c.rows == 0 || c.cols == 0) return;
  const Key key = {c.rows,
                   c.cols,
                   inner,
                   a.ld,
                   b.ld,
                   c.ld,
                   (trans_a ? 1 : 0) + (trans_b ? 2 : 0) + (a.dtype == DType::kBF16 ? 4 : 0),
                   alignment(a),
                   alignment(b),
                   alignment(c)};
  auto it = plans_.find(key);
  if (it == plans_.end()) it = plans_.emplace(key, make_plan(a, trans_a, b, trans_b, c)).first;
  const Plan& plan = it->second;
  check_cublas(cublasLtMatmul(handle_, plan.operation, &alpha, b.data, plan.first, a.data,
                              plan.second, &beta, c.data, plan.result, c.data, plan.result,
                              &plan.algorithm, workspace_, workspace_bytes_, stream_),
               "a matrix product");
}

}  // namespace heddle
