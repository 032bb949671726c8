#include "framework/device/make_device.h"

#include <string>

#include "framework/core/error.h"
#include "framework/device/cuda/cuda_module.h"

namespace heddle {

std::unique_ptr<Device> make_device(const DeviceConfig& config, int local_rank, std::string* note) {
  if (config.kind == "cpu") return make_cpu_device();
  std::string why, remedy = "set device.kind: cpu, or see heddle doctor";
  size_t devices = 0;
  const CudaModule* module = load_cuda_module(&why);
  if (module != nullptr) {
    const CudaSystem system = module->inspect();
    why = system.problem;
    if (!system.remedy.empty()) remedy = system.remedy;
    devices = system.devices.size();
  }
  if (!why.empty()) {
    if (config.kind == "cuda") throw environment_error("cuda", why, remedy);
    if (config.precision == "bf16") {
      throw environment_error("cuda", "device.precision bf16 needs CUDA: " + why,
                              "set device.precision: auto, or see heddle doctor");
    }
    if (note != nullptr && module != nullptr) *note = why;
    return make_cpu_device();
  }
  CudaOptions options;
  options.bf16 = config.precision != "fp32";
  options.graphs = config.cuda_graph == "never"    ? CudaOptions::Graphs::kOff
                   : config.cuda_graph == "always" ? CudaOptions::Graphs::kRequired
                                                   : CudaOptions::Graphs::kWherePossible;
  return module->make_device(devices == 1 ? 0 : local_rank, options);
}

}  // namespace heddle
