// Where a plugin works: the device that create() gets, the memory of its tensors, the stream of its
// calls.
#pragma once

#include "plugins/abi/heddle_attention.h"
#include "plugins/conformance/memory.h"

namespace heddle::conformance {

struct Target {
  heddle_device device{};  // on the CPU units are filled in: the workers of each context's host
  Memory* memory = nullptr;
  void* stream = nullptr;

  bool is_cpu() const { return device.type == HEDDLE_DEVICE_CPU; }
};

inline Target host_target() {
  Target target;
  target.device.struct_size = sizeof target.device;
  target.device.type = HEDDLE_DEVICE_CPU;
  target.memory = &host_memory();
  return target;
}

}  // namespace heddle::conformance
