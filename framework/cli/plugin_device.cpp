#include "framework/cli/plugin_device.h"

#include <fmt/format.h>

#include "framework/attention/names.h"
#include "framework/core/error.h"
#include "framework/device/make_device.h"

namespace heddle {
namespace {

using conformance::Block;
using conformance::Edge;

constexpr size_t kBandBytes = 512;
constexpr size_t kMostKept = 64;  // free allocations of a size
constexpr size_t kLargestKept = size_t{1} << 20;

char* round_down(char* p, size_t align) {
  return p - reinterpret_cast<uintptr_t>(p) % align;
}

}  // namespace

std::unique_ptr<Device> make_plugin_device(const std::string& kind) {
  if (kind == "cpu") return make_cpu_device();
  return make_device({.kind = kind, .precision = "bf16"}, 0);
}

void require_device_kind(const PluginLibrary& library, const std::string& kind) {
  const uint32_t type = library.table().device_type;
  const uint32_t wanted = kind == "cuda" ? HEDDLE_DEVICE_CUDA : HEDDLE_DEVICE_CPU;
  if (type == wanted) return;
  throw plugin_error(fmt::format("serves {}, and --device is {}", device_name(type), kind),
                     type == HEDDLE_DEVICE_CUDA  ? "add --device cuda"
                     : type == HEDDLE_DEVICE_CPU ? "leave --device out"
                                                 : "this heddle has no such device");
}

uint32_t dtype_of(const std::string& name) {
  if (name == "f32") return HEDDLE_DTYPE_F32;
  if (name == "bf16") return HEDDLE_DTYPE_BF16;
  return name == "f16" ? HEDDLE_DTYPE_F16 : 0;
}

Block DeviceMemory::allocate(size_t bytes, size_t align, Edge edge, const char* label) {
  const std::lock_guard lock(mutex_);
  Block block;
  block.bytes = bytes;
  block.pages_bytes = bytes + kBandBytes + align;
  auto& free = free_[block.pages_bytes];
  DeviceBuffer buffer;
  if (free.empty()) {
    buffer = device_.allocate(block.pages_bytes, label);
  } else {
    buffer = std::move(free.back());
    free.pop_back();
  }
  block.pages = buffer.get();
  // At the end: aligned to what was asked for and, where allocations begin at multiples of 256, to
  // no more.
  char* const begin = static_cast<char*>(block.pages);
  block.data = edge == Edge::kEnd ? round_down(begin + kBandBytes + align, align)
                                  : round_down(begin + align - 1, align);
  const std::vector<unsigned char> band(block.pages_bytes, conformance::kBand);
  device_.upload(block.pages, band.data(), band.size());
  live_[block.pages] = std::move(buffer);
  return block;
}

void DeviceMemory::release(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(block.pages);
  auto& free = free_[block.pages_bytes];
  if (block.pages_bytes <= kLargestKept && free.size() < kMostKept) {
    free.push_back(std::move(it->second));
  }
  live_.erase(it);
}

void DeviceMemory::upload(const Block& block, const void* source) {
  const std::lock_guard lock(mutex_);
  device_.upload(block.data, source, block.bytes);
}

void DeviceMemory::download(const Block& block, void* target) {
  const std::lock_guard lock(mutex_);
  device_.download(target, block.data, block.bytes);
}

bool DeviceMemory::overrun(const Block& block, int64_t* offset) {
  std::vector<unsigned char> pages(block.pages_bytes);
  {
    const std::lock_guard lock(mutex_);
    device_.download(pages.data(), block.pages, pages.size());
  }
  const auto begin = static_cast<const char*>(block.data) - static_cast<const char*>(block.pages);
  const auto end = begin + static_cast<int64_t>(block.bytes);
  for (auto i = end; i < std::ssize(pages); ++i) {
    if (pages[static_cast<size_t>(i)] != conformance::kBand) return *offset = i - end, true;
  }
  for (auto i = begin; i-- > 0;) {
    if (pages[static_cast<size_t>(i)] != conformance::kBand) return *offset = i - begin, true;
  }
  return false;
}

std::string DeviceMemory::finish() {
  const std::lock_guard lock(mutex_);
  try {
    device_.synchronize();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

}  // namespace heddle
