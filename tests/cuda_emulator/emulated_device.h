// The emulated CUDA device as heddle gets it: from its module, with cuda_flash as the only plugin.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "framework/attention/attention.h"
#include "framework/device/make_device.h"

namespace heddle::testing {

inline std::unique_ptr<Device> emulated_device(const std::string& precision,
                                               const std::string& cuda_graph = "auto") {
  setenv("HEDDLE_CUDA_MODULE", HEDDLE_EMULATED "/libheddle_cuda.so", 1);
  return make_device({.kind = "cuda", .precision = precision, .cuda_graph = cuda_graph});
}

struct EmulatedHost {
  explicit EmulatedHost(const std::string& precision, const std::string& cuda_graph = "auto")
      : device(emulated_device(precision, cuda_graph)),
        attention(AttentionHost::create(config(), *device)) {}
  static AttentionConfig config() {
    AttentionConfig c;
    c.backend = "cuda_flash";
    c.plugin_path = {HEDDLE_EMULATED "/plugins"};
    return c;
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<AttentionHost> attention;
};

}  // namespace heddle::testing
