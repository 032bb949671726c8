#include "framework/core/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "framework/core/error.h"

namespace heddle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t align) {
  return (value + align - 1) / align * align;
}

}  // namespace

HostBuffer::HostBuffer(size_t bytes, const std::string& what) : bytes_(bytes) {
  if (bytes == 0) return;
  const size_t align = bytes >= kHugePage ? kHugePage : kBufferAlign;
  const bool fits = bytes <= std::numeric_limits<size_t>::max() - align;
  data_ = fits ? std::aligned_alloc(align, round_up(bytes, align)) : nullptr;
  if (data_ == nullptr) {
    throw environment_error("memory",
                            "cannot allocate " + std::to_string(bytes >> 20) + " MiB for " + what,
                            "lower train.device_batch_size or model.sequence_len");
  }
  if (align == kHugePage) madvise(data_, round_up(bytes, align), MADV_HUGEPAGE);
  std::memset(data_, 0, bytes);
}

HostBuffer::~HostBuffer() {
  std::free(data_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

size_t Arena::reserve(std::string name, size_t bytes) {
  HEDDLE_CHECK(base_ == nullptr, "reserve(" + name + ") after commit()");
  const size_t need = round_up(std::max<size_t>(bytes, 1), kBufferAlign);
  // Best fit among the holes keeps the plan close to the peak of what is live.
  auto best = holes_.end();
  for (auto it = holes_.begin(); it != holes_.end(); ++it) {
    if (it->bytes >= need && (best == holes_.end() || it->bytes < best->bytes)) best = it;
  }
  size_t offset;
  if (best != holes_.end()) {
    offset = best->offset;
    best->offset += need;
    best->bytes -= need;
    if (best->bytes == 0) holes_.erase(best);
  } else {
    // A hole at the very end grows to fit; otherwise the entry goes behind everything.
    offset = size_;
    if (!holes_.empty() && holes_.back().offset + holes_.back().bytes == size_) {
      offset = holes_.back().offset;
      holes_.pop_back();
    }
    size_ = offset + need;
  }
  entries_.push_back({std::move(name), offset, bytes});
  return entries_.size() - 1;
}

void Arena::release(size_t entry) {
  const Entry& e = entries_.at(entry);
  holes_.push_back({e.offset, round_up(std::max<size_t>(e.bytes, 1), kBufferAlign)});
  std::sort(holes_.begin(), holes_.end(),
            [](const Hole& a, const Hole& b) { return a.offset < b.offset; });
  for (size_t i = 0; i + 1 < holes_.size();) {
    const size_t end = holes_[i].offset + holes_[i].bytes;
    HEDDLE_CHECK(end <= holes_[i + 1].offset, "entry " + e.name + " was released twice");
    if (end == holes_[i + 1].offset) {
      holes_[i].bytes += holes_[i + 1].bytes;
      holes_.erase(holes_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    } else {
      ++i;
    }
  }
}

void Arena::commit(void* base) {
  HEDDLE_CHECK(base_ == nullptr && base != nullptr, "commit() wants a block, once");
  base_ = static_cast<char*>(base);
}

void* Arena::data(size_t entry) const {
  HEDDLE_CHECK(base_ != nullptr, "arena used before commit()");
  return base_ + entries_.at(entry).offset;
}

}  // namespace heddle
