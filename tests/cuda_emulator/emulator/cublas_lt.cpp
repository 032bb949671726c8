// cublasLt* functions: products in host loops, fp32 sums, and the refusals of the real library that
// Heddle could run into. A product takes the alignments that its heuristic was promised.
#include "cublasLt.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda_bf16.h"
#include "internal.h"

struct cublasLtContext {};
struct HeddleMatmulDesc {
  int transposed[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
};
struct HeddleMatrixLayout {
  cudaDataType_t type;
  int64_t rows, cols, ld;  // by columns
};
struct HeddleMatmulPreference {
  uint64_t workspace = 0;
  uint32_t align[4] = {256, 256, 256, 256};
};

namespace {

using heddle::emulator::machine;

constexpr size_t kWorkspaceBytes = 1024;  // that every product here is said to need

size_t size_of(cudaDataType_t type) {
  return type == CUDA_R_16BF ? 2 : 4;
}

bool good(const HeddleMatrixLayout& l, const void* data, uint64_t align) {
  if (reinterpret_cast<uintptr_t>(data) % align != 0) return false;
  const size_t bytes =
      static_cast<size_t>((l.cols - 1) * l.ld + l.rows) * size_of(l.type);
  if (machine().device.contains(data)) return machine().device.outside(data, bytes).empty();
  return machine().host_memory_allowed;
}

// Lines of `inner` elements: the rows of op(a), or the columns of op(b).
std::vector<float> lines(const HeddleMatrixLayout& l, const void* data, bool along_columns) {
  const int64_t count = along_columns ? l.cols : l.rows, inner = along_columns ? l.rows : l.cols;
  std::vector<float> out(static_cast<size_t>(count * inner));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < inner; ++k) {
      const int64_t at = along_columns ? i * l.ld + k : k * l.ld + i;
      out[static_cast<size_t>(i * inner + k)] =
          l.type == CUDA_R_16BF ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at])
                                : static_cast<const float*>(data)[at];
    }
  }
  return out;
}

float dot(const float* x, const float* y, int64_t n) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  Four sum[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int s = 0; s < 4; ++s) {
      sum[s] += *reinterpret_cast<const Four*>(x + i + 4 * s) *
                *reinterpret_cast<const Four*>(y + i + 4 * s);
    }
  }
  const Four all = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  float total = (all[0] + all[2]) + (all[1] + all[3]);
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

float number(const void* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// d = alpha op(a) op(b) + beta c
struct Product {
  HeddleMatmulDesc operation;
  HeddleMatrixLayout a_layout, b_layout, c_layout, d_layout;
  const void *a, *b, *c;
  void* d;
  uint64_t align[4];
  float alpha, beta;

  bool possible() const {
    return good(a_layout, a, align[0]) && good(b_layout, b, align[1]) &&
           good(c_layout, c, align[2]) && good(d_layout, d, align[3]);
  }
  void run() const {
    const bool ta = operation.transposed[0] == CUBLAS_OP_T;
    const bool tb = operation.transposed[1] == CUBLAS_OP_T;
    const int64_t m = d_layout.rows, n = d_layout.cols, k = ta ? a_layout.rows : a_layout.cols;
    const std::vector<float> rows = lines(a_layout, a, ta), cols = lines(b_layout, b, !tb);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        float& out = static_cast<float*>(d)[j * d_layout.ld + i];
        const float sum =
            alpha * dot(&rows[static_cast<size_t>(i * k)], &cols[static_cast<size_t>(j * k)], k);
        // With beta 0 what c holds is not read.
        out = beta == 0.0f ? sum : sum + beta * static_cast<const float*>(c)[j * c_layout.ld + i];
      }
    }
  }
};

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
  return 130000;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *operation = new HeddleMatmulDesc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  if (bytes != sizeof(int)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&operation->transposed[which == CUBLASLT_MATMUL_DESC_TRANSA ? 0 : 1], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = new HeddleMatrixLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new HeddleMatmulPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, size_t bytes) {
  if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (bytes != sizeof(uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference->workspace, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&preference->align[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t* results,
    int* found) {
  *found = 0;
  const bool ta = operation->transposed[0] == CUBLAS_OP_T;
  const bool tb = operation->transposed[1] == CUBLAS_OP_T;
  const int64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols;
  const bool fits = (tb ? b->cols : b->rows) == k && c->rows == m &&
                    c->cols == (tb ? b->rows : b->cols) && c->rows == d->rows && c->cols == d->cols;
  const bool dense = a->ld >= a->rows && b->ld >= b->rows && c->ld >= c->rows && d->ld >= d->rows;
  if (!fits || !dense || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (a->type != b->type || c->type != CUDA_R_32F || d->type != CUDA_R_32F ||
      preference->workspace < kWorkspaceBytes) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  results[0] = {};
  for (int i = 0; i < 4; ++i) results[0].algo.data[i] = preference->align[i];
  results[0].workspaceSize = kWorkspaceBytes;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const uint64_t* align = algorithm->data;
  const Product product{*operation,
                        *a_layout,
                        *b_layout,
                        *c_layout,
                        *d_layout,
                        a,
                        b,
                        c,
                        d,
                        {align[0], align[1], align[2], align[3]},
                        number(alpha),
                        number(beta)};
  if (!product.possible() || workspace_bytes < kWorkspaceBytes ||
      !machine().device.contains(workspace)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int error = heddle::emulator::enqueue(stream, [product]() -> int {
    if (!product.possible()) return cudaErrorIllegalAddress;  // freed since it was captured
    product.run();
    return cudaSuccess;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
