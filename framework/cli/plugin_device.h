// The device that `heddle plugin check` and `bench` work on, --device cpu | cuda, and its memory as
// the conformance suite uses it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "framework/attention/plugin.h"
#include "framework/device/device.h"
#include "plugins/conformance/memory.h"

namespace heddle {

// Device 0 of those that CUDA_VISIBLE_DEVICES leaves, or the CPU. Throws heddle::Error
// (environment) when there is none.
std::unique_ptr<Device> make_plugin_device(const std::string& kind);

// Throws heddle::Error (plugin) when the plugin serves another kind of device, and says which
// option names that one.
void require_device_kind(const PluginLibrary& library, const std::string& kind);

// HEDDLE_DTYPE_* of "f32", "bf16" or "f16"; 0 for anything else.
uint32_t dtype_of(const std::string& name);

// Buffers on a device. The edge that a case names is the edge of its allocation, so that what reads
// beyond it can be seen by a tool such as compute-sanitizer; the other side is a band that the
// suite reads back. From any thread.
class DeviceMemory final : public conformance::Memory {
 public:
  explicit DeviceMemory(Device& device) : device_(device) {}

  conformance::Block allocate(size_t bytes, size_t align, conformance::Edge edge,
                              const char* label) override;
  void release(const conformance::Block& block) override;
  void upload(const conformance::Block& block, const void* source) override;
  void download(const conformance::Block& block, void* target) override;
  bool overrun(const conformance::Block& block, int64_t* offset) override;
  std::string finish() override;

 private:
  Device& device_;
  std::mutex mutex_;
  std::map<void*, DeviceBuffer> live_;
  std::map<size_t, std::vector<DeviceBuffer>> free_;  // by size
};

}  // namespace heddle
