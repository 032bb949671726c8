// The device's heap: one reserved range of addresses in which nothing but live allocations can be
// touched. Addresses are never used twice, so that a use after free is seen for ever.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "internal.h"

namespace heddle::emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGap = 64 * 1024;
constexpr uint32_t kByAtomic = 1u << 31;
constexpr unsigned kCellBytes = 2;

size_t pages(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
}

}  // namespace

DeviceMemory::DeviceMemory() {
  void* base = ::mmap(nullptr, kHeapBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(base);
  next_ = base_ + kGap;
  if (const char* mebibytes = std::getenv("HEDDLE_EMULATED_MEMORY_MIB")) {
    capacity_ = static_cast<size_t>(std::atoll(mebibytes)) << 20;
  }
}

void* DeviceMemory::allocate(size_t bytes) {
  if (bytes > capacity_ || used_ + bytes > capacity_) return nullptr;
  char* data = next_;
  if (data + pages(bytes) + kGap > base_ + kHeapBytes) return nullptr;
  if (::mprotect(data, pages(bytes), PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(data, 0xff, bytes);
  auto* writers = static_cast<uint32_t*>(std::calloc(bytes / kCellBytes + 1, sizeof(uint32_t)));
  allocations_.push_back({data, bytes, true, {writers, std::free}});
  last_ = nullptr;
  next_ = data + pages(bytes) + kGap;
  used_ += bytes;
  return data;
}

bool DeviceMemory::release(void* pointer) {
  Allocation* a = find(static_cast<const char*>(pointer));
  if (!a || a->data != pointer || !a->live) return false;
  a->live = false;
  a->writers.reset();
  used_ -= a->bytes;
  ::madvise(a->data, pages(a->bytes), MADV_DONTNEED);
  return ::mprotect(a->data, pages(a->bytes), PROT_NONE) == 0;
}

// The last allocation that begins at or before p.
DeviceMemory::Allocation* DeviceMemory::find(const char* p) {
  if (last_ && p >= last_->data && p < last_->data + last_->bytes) return last_;
  auto it = std::upper_bound(allocations_.begin(), allocations_.end(), p,
                             [](const char* x, const Allocation& a) { return x < a.data; });
  if (it == allocations_.begin()) return nullptr;
  return last_ = &*--it;
}

std::string DeviceMemory::outside(const void* address, size_t bytes, bool* freed) {
  const auto* p = static_cast<const char*>(address);
  Allocation* a = find(p);
  // Between two allocations: the nearer one is meant.
  if (a && p >= a->data + a->bytes + kGap / 2 && a != &allocations_.back()) ++a;
  if (!a) a = allocations_.empty() ? nullptr : &allocations_.front();
  if (!a) return "an address where nothing was ever allocated";
  const std::string whole = " an allocation of " + std::to_string(a->bytes) + " bytes";
  if (p < a->data) return std::to_string(a->data - p) + " bytes before" + whole;
  const auto at = static_cast<size_t>(p - a->data);
  if (at + bytes > a->bytes) return "at offset " + std::to_string(at) + " of" + whole;
  if (a->live) return {};
  if (freed) *freed = true;
  return "inside" + whole + " that was freed";
}

void DeviceMemory::access(const Thread& thread, const void* address, unsigned bytes, Access access,
                          const Place& place, uint32_t block_serial, uint32_t launch_serial) {
  (void)thread;
  const auto* p = static_cast<const char*>(address);
  Allocation* a = find(p);
  const char* verb = access == Access::kRead ? "reads " : "writes ";
  if (!a || !a->live || p + bytes > a->data + a->bytes) {
    bool freed = false;
    const std::string how = outside(address, bytes, &freed);
    machine().fail(freed ? FaultKind::kUseAfterFree : FaultKind::kOutOfBounds,
                   verb + std::to_string(bytes) + " bytes, " + how, place);
  }
  const auto offset = static_cast<size_t>(p - a->data);
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) {
    machine().fail(FaultKind::kMisaligned,
                   verb + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                       " of device memory",
                   place);
  }
  for (size_t n = offset / kCellBytes; n <= (offset + bytes - 1) / kCellBytes; ++n) {
    uint32_t& writer = a->writers[n];
    const uint32_t block = writer & ~kByAtomic;
    const bool both_atomic = (writer & kByAtomic) && access == Access::kAtomic;
    if (block >= launch_serial && block != block_serial && !both_atomic) {
      machine().fail(FaultKind::kBlockRace,
                     verb + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                         " of device memory that another block of this launch wrote",
                     place);
    }
    if (access != Access::kRead) {
      writer = block_serial | (access == Access::kAtomic ? kByAtomic : 0u);
    }
  }
}

}  // namespace heddle::emulator
