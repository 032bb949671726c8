#include "framework/device/cuda/cuda_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "framework/core/version.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

struct Loaded {
  const CudaModule* module = nullptr;
  std::string why;
};

std::string module_path() {
  if (const char* path = std::getenv("HEDDLE_CUDA_MODULE"); path != nullptr && *path != '\0') {
    return path;
  }
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
  return (bin.parent_path() / kModuleFolder / "libheddle_cuda.so").string();
}

Loaded load() {
  const std::string path = module_path();
  std::error_code ec;
  if (!fs::exists(path, ec)) {
    return {nullptr, "this heddle has no CUDA device (" + path +
                         " is not there; build it with the preset cuda)"};
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* complaint = dlerror();
    return {nullptr, std::string("the CUDA device cannot be loaded: ") +
                         (complaint != nullptr ? complaint : path.c_str())};
  }
  using Entry = const CudaModule* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, kCudaModuleEntry));
  if (entry == nullptr) return {nullptr, path + " does not export " + kCudaModuleEntry};
  const CudaModule* module = entry();
  if (std::string(module->version) != kVersion) {
    return {nullptr, path + " is of heddle " + module->version + ", this is heddle " + kVersion};
  }
  return {module, {}};
}

}  // namespace

const CudaModule* load_cuda_module(std::string* why) {
  static const auto& loaded = *new Loaded(load());
  *why = loaded.why;
  return loaded.module;
}

}  // namespace heddle
