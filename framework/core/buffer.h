// Host memory: one aligned block that frees itself. The arena plans buffers before the first step
// and then hands out pointers without allocating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

constexpr size_t kBufferAlign = 64;

// `bytes` bytes, zeroed, aligned to kBufferAlign (2 MiB and huge pages when large). Throws
// heddle::Error naming `what` and the size when memory is not to be had.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(size_t bytes, const std::string& what);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() const { return data_; }
  float* f32() const { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Offsets first, memory later: reserve() everything, allocate bytes() once, then commit() the
// block. Entries are named so that the memory table of --dry-run is read off the plan.
class Arena {
 public:
  struct Entry {
    std::string name;
    size_t offset;
    size_t bytes;
  };

  // Returns the index of the entry; may be called only before commit().
  size_t reserve(std::string name, size_t bytes);
  // The entry is dead from here on: later reservations may take the same bytes.
  void release(size_t entry);
  // `base` has bytes() bytes, is aligned to kBufferAlign and outlives the arena's use.
  void commit(void* base);

  size_t bytes() const { return size_; }
  const std::vector<Entry>& entries() const { return entries_; }
  void* data(size_t entry) const;
  float* f32(size_t entry) const { return static_cast<float*>(data(entry)); }

 private:
  struct Hole {
    size_t offset, bytes;
  };
  std::vector<Entry> entries_;
  std::vector<Hole> holes_;
  size_t size_ = 0;
  char* base_ = nullptr;
};

}  // namespace heddle
