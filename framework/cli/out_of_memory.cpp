#include "framework/cli/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/data/dataset.h"
#include "framework/device/cuda/cuda_module.h"
#include "framework/report/advice.h"
#include "framework/report/plan_text.h"

namespace heddle {
namespace {

// The memory of this rank's CUDA device; the table's figures stand in for its speed, which only
// orders the advice.
DeviceSpec cuda_spec(const CudaDeviceInfo& info, const DeviceConfig& config) {
  DeviceSpec d = find_device("a100");
  d.name = info.name;
  d.memory_bytes = static_cast<double>(info.memory);
  d.reserved_bytes = 0;
  if (config.precision == "fp32") d.compute_bytes = sizeof(float);
  return d;
}

DeviceSpec device_of(const Config& config, const LaunchContext& launch) {
  std::string why;
  if (config.device.kind != "cpu") {
    if (const CudaModule* module = load_cuda_module(&why)) {
      const CudaSystem system = module->inspect();
      const auto count = static_cast<int>(system.devices.size());
      if (count > 0) {
        const int index = std::min(launch.local_rank, count - 1);
        return cuda_spec(system.devices[static_cast<size_t>(index)], config.device);
      }
    }
  }
  return find_device("cpu");
}

}  // namespace

bool out_of_memory(const Error& error) {
  return error.code() == ExitCode::kEnvironment && error.area() == "memory";
}

std::string memory_plan(const Config& config, const LaunchContext& launch) {
  try {
    PlanRequest r;
    r.config = config;
    const int64_t local = std::max(launch.local_size, 1);
    r.topology = {(launch.world_size + local - 1) / local, local};
    if (!config.model.vocab_size)
      r.vocab_size = data_vocabulary(config.data).vocab_size.value_or(0);
    r.device = device_of(config, launch);
    r.attention_workspace = attention_workspace_of(r);
    PlanNotes notes;
    notes.level =
        launch.world_size == 1 ? ShardLevel::kNone : parse_shard_level(config.dist.shard);
    const RunPlan plan = make_plan(r);
    notes.advice = advise(r, plan, notes.level).value_or("");
    return fmt::format("memory of this run on {}, planned\n{}", r.device.name,
                       memory_text(plan, notes));
  } catch (const Error&) {
    return {};  // the error that is being reported matters more
  }
}

}  // namespace heddle
