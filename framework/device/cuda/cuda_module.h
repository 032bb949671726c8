// libheddle_cuda.so: the CUDA device as a module that is loaded when it is wanted, so that one
// heddle runs with and without a driver. The module and the program are of one build.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "framework/device/device.h"

namespace heddle {

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  int arch = 0;  // 10 * major + minor of its compute capability
  size_t memory = 0, free_memory = 0;  // bytes
  std::vector<int> peers;              // devices whose memory it reaches directly
  std::string identity;                // its UUID, the same in every process: "GPU-8a1c..."
};

struct CudaSystem {
  // As "13.0"; driver: empty when there is none.
  std::string runtime, driver;
  std::vector<CudaDeviceInfo> devices;
  // Why no device can be used, and what to do about it; empty when one can.
  std::string problem, remedy;
};

// "2.28.9" and the file, or why several ranks cannot be connected and what to do about it.
struct NcclInfo {
  std::string version, path, problem, remedy;
};

struct CudaOptions {
  bool bf16 = true;
  // kRequired: what cannot be recorded is an error.
  enum class Graphs { kOff, kWherePossible, kRequired };
  Graphs graphs = Graphs::kWherePossible;
};

struct CudaModule {
  const char* version;  // of heddle, as built
  // Both throw nothing but std::bad_alloc. find_nccl loads the library, which a process alone has no
  // use for.
  CudaSystem (*inspect)();
  NcclInfo (*find_nccl)();
  // Throws heddle::Error (environment) when this device cannot be used.
  std::unique_ptr<Device> (*make_device)(int index, const CudaOptions& options);
};

// The only symbol that the module exports.
inline constexpr const char* kCudaModuleEntry = "heddle_cuda_module";

// Loads HEDDLE_CUDA_MODULE or lib/heddle/libheddle_cuda.so beside bin/, once per process; never
// unloads it. nullptr: it cannot be loaded, and *why says so.
const CudaModule* load_cuda_module(std::string* why);

}  // namespace heddle
