#include "plugins/conformance/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace heddle::conformance {
namespace {

struct Live {
  char* begin;  // first guard page
  char* end;    // behind the last guard page
  Block block;
  const char* label;
};

size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

class HostMemory final : public Memory {
 public:
  Block allocate(size_t bytes, size_t align, Edge edge, const char* label) override {
    const size_t page = page_size();
    const size_t inner = std::max(page, (bytes + align + page - 1) / page * page);
    char* base = take(inner);
    Block block;
    block.pages = base + page;
    block.pages_bytes = inner;
    block.bytes = bytes;
    char* start = base + page;
    if (edge == Edge::kEnd) {
      const auto end = reinterpret_cast<uintptr_t>(start) + inner - bytes;
      start = reinterpret_cast<char*>(end & ~(static_cast<uintptr_t>(align) - 1));
    }
    block.data = start;
    std::memset(block.pages, kBand, inner);
    const std::lock_guard lock(mutex_);
    live_.push_back({base, base + inner + 2 * page, block, label});
    return block;
  }

  void release(const Block& block) override {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < live_.size(); ++i) {
      if (live_[i].block.pages != block.pages) continue;
      keep_or_unmap(live_[i].begin, block.pages_bytes);
      live_[i] = live_.back();
      live_.pop_back();
      return;
    }
  }

  void upload(const Block& block, const void* source) override {
    if (block.bytes > 0) std::memcpy(block.data, source, block.bytes);
  }
  void download(const Block& block, void* target) override {
    if (block.bytes > 0) std::memcpy(target, block.data, block.bytes);
  }

  bool overrun(const Block& block, int64_t* offset) override {
    const auto* begin = static_cast<const unsigned char*>(block.pages);
    const auto* data = static_cast<const unsigned char*>(block.data);
    const auto* end = begin + block.pages_bytes;
    for (const auto* p = data + block.bytes; p < end; ++p) {
      if (*p != kBand) return *offset = p - (data + block.bytes), true;
    }
    for (const auto* p = data; p-- > begin;) {
      if (*p != kBand) return *offset = p - data, true;
    }
    return false;
  }

  std::string finish() override { return {}; }

  std::string describe_guard(const char* address) {
    const std::lock_guard lock(mutex_);
    for (const Live& live : live_) {
      if (address < live.begin || address >= live.end) continue;
      const char* data = static_cast<const char*>(live.block.data);
      const char* end = data + live.block.bytes;
      const bool behind = address >= end;
      if (!behind && address >= data) return {};
      const auto distance = behind ? address - end : data - address;
      return std::to_string(distance) + (behind ? " bytes past the end of " : " bytes before ") +
             live.label;
    }
    return {};
  }

 private:
  static constexpr size_t kMostKept = 64;

  // A mapping of `inner` bytes between two guard pages, reused when one of that size is free.
  char* take(size_t inner) {
    {
      const std::lock_guard lock(mutex_);
      auto& free = free_[inner];
      if (!free.empty()) {
        char* base = free.back();
        free.pop_back();
        return base;
      }
    }
    const size_t page = page_size();
    void* base = ::mmap(nullptr, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    if (::mprotect(static_cast<char*>(base) + page, inner, PROT_READ | PROT_WRITE) != 0) {
      throw std::bad_alloc();
    }
    return static_cast<char*>(base);
  }

  void keep_or_unmap(char* base, size_t inner) {
    auto& free = free_[inner];
    if (free.size() < kMostKept && inner < (size_t{1} << 20)) {
      free.push_back(base);
    } else {
      ::munmap(base, inner + 2 * page_size());
    }
  }

  std::mutex mutex_;
  std::vector<Live> live_;
  std::map<size_t, std::vector<char*>> free_;
};

HostMemory& instance() {
  static auto& memory = *new HostMemory;  // plugins may fault until the last instruction
  return memory;
}

}  // namespace

Memory& host_memory() {
  return instance();
}

std::string guard_hit(const void* address) {
  return instance().describe_guard(static_cast<const char*>(address));
}

}  // namespace heddle::conformance
