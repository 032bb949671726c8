#include "framework/device/make_device.h"

#include <string>

#include "framework/core/error.h"
#include "framework/device/cuda/cuda_module.h"

namespace heddle {

int device_of_rank(int visible, int local_rank, int local_size) {
  if (visible >= local_size) return local_rank;
  if (visible == 1) return 0;
  throw environment_error(
      "cuda",
      std::to_string(local_size) + " ranks on this host see " + std::to_string(visible) +
          " CUDA devices: each rank needs one of its own",
      "start at most one rank per device of a host, or let the launcher show each rank its own "
      "(CUDA_VISIBLE_DEVICES)");
}

std::unique_ptr<Device> make_device(const DeviceConfig& config, int local_rank, int local_size,
                                    std::string* note) {
  if (config.kind == "cpu") return make_cpu_device();
  std::string why, remedy = "set device.kind: cpu, or see heddle doctor";
  int devices = 0;
  const CudaModule* module = load_cuda_module(&why);
  if (module != nullptr) {
    const CudaSystem system = module->inspect();
    why = system.problem;
    if (!system.remedy.empty()) remedy = system.remedy;
    devices = static_cast<int>(system.devices.size());
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
  return module->make_device(device_of_rank(devices, local_rank, local_size), options);
}

}  // namespace heddle
