// The functions of cuBLASLt that the device uses, loaded when the first of them is called: the
// library is hundreds of MB, a machine may lack it, and what only runs attention needs none of it.
// They have the names and types of cublasLt.h, whose declarations they are compiled against; the
// module is not linked with the library.
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/core/error.h"

namespace heddle {
namespace {

constexpr int kMajor = CUBLAS_VER_MAJOR;

// Beside this module.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

// HEDDLE_CUBLASLT_LIBRARY alone when it is set; else as the loader finds it, and then where
// toolkits lie.
std::vector<std::string> candidates() {
  const char* named = std::getenv("HEDDLE_CUBLASLT_LIBRARY");
  if (named != nullptr && *named != '\0') return {named};
  const std::string file = "libcublasLt.so." + std::to_string(kMajor);
  std::vector<std::string> paths = {file, own_folder() + "/" + file};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(variable)) {
      paths.push_back(std::string(root) + "/lib64/" + file);
    }
  }
  paths.push_back("/usr/local/cuda/lib64/" + file);
  return paths;
}

void* open_library() {
  std::string why;
  for (const std::string& path : candidates()) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    if (why.empty()) why = dlerror();
  }
  throw environment_error(
      "cuda", "cuBLASLt cannot be loaded: " + why,
      "install cuBLAS " + std::to_string(kMajor) +
          " (part of the CUDA toolkit and of PyTorch's wheels), and put its folder into "
          "LD_LIBRARY_PATH or its path into HEDDLE_CUBLASLT_LIBRARY");
}

// kDeclared: the function of this name in cublasLt.h, that is, the one below.
template <auto* kDeclared>
decltype(kDeclared) find(const char* name) {
  static void* const library = open_library();
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw environment_error("cuda", std::string("the cuBLASLt that was found has no ") + name,
                            "install cuBLAS " + std::to_string(kMajor));
  }
  return reinterpret_cast<decltype(kDeclared)>(symbol);
}

template <auto* kDeclared, class... Args>
cublasStatus_t forward(const char* name, Args... args) {
  static const auto function = find<kDeclared>(name);
  return function(args...);
}

}  // namespace
}  // namespace heddle

using heddle::forward;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return forward<cublasLtCreate>("cublasLtCreate", handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return forward<cublasLtDestroy>("cublasLtDestroy", handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  return forward<cublasLtMatmulDescCreate>("cublasLtMatmulDescCreate", operation, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return forward<cublasLtMatmulDescDestroy>("cublasLtMatmulDescDestroy", operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  return forward<cublasLtMatmulDescSetAttribute>("cublasLtMatmulDescSetAttribute", operation, which,
                                                 value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return forward<cublasLtMatrixLayoutCreate>("cublasLtMatrixLayoutCreate", layout, type, rows, cols,
                                             ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return forward<cublasLtMatrixLayoutDestroy>("cublasLtMatrixLayoutDestroy", layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return forward<cublasLtMatmulPreferenceCreate>("cublasLtMatmulPreferenceCreate", preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return forward<cublasLtMatmulPreferenceDestroy>("cublasLtMatmulPreferenceDestroy", preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, size_t bytes) {
  return forward<cublasLtMatmulPreferenceSetAttribute>("cublasLtMatmulPreferenceSetAttribute",
                                                       preference, which, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  return forward<cublasLtMatmulAlgoGetHeuristic>("cublasLtMatmulAlgoGetHeuristic", handle,
                                                 operation, a, b, c, d, preference, wanted, results,
                                                 found);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return forward<cublasLtMatmul>("cublasLtMatmul", handle, operation, alpha, a, a_layout, b,
                                 b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
                                 workspace_bytes, stream);
}

}  // extern "C"
