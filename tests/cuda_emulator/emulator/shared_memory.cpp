// Shared memory and its shadow. Two accesses to the same 2 bytes, at least one of them a write,
// must have a barrier between them (or __syncwarp, within a warp). Reads are remembered per warp,
// the last write by its thread.
#include <cstring>

#include "internal.h"

namespace heddle::emulator {
namespace {

constexpr unsigned kCellBytes = 2;

std::string verb(Access access) {
  return access == Access::kRead ? "reads " : access == Access::kWrite ? "writes " : "adds to ";
}

}  // namespace

SharedMemory::SharedMemory() : data_(static_cast<unsigned char*>(std::aligned_alloc(1024, kArenaBytes))) {}

void SharedMemory::start(size_t bytes, unsigned warps, Clocks& clocks) {
  bytes_ = bytes;
  clocks_ = &clocks;
  const size_t cells = (bytes + kCellBytes - 1) / kCellBytes;
  if (cells_.size() < cells) cells_.resize(cells);
  if (warps_ != warps || reads_.size() < cells * warps || clocks.base == 1) {
    warps_ = warps;
    cells_.assign(cells_.size(), Cell{});
    reads_.assign(cells_.size() * warps, Reads{});
  }
  std::memset(data_, 0xff, bytes);
  for (size_t n = 0; n < cells; ++n) cells_[n].in_flight = false;
}

bool SharedMemory::ordered(const Thread& now, unsigned thread, bool several, uint32_t tick) const {
  const unsigned warp = thread / kWarp;
  if (tick < clocks_->base) return true;
  if (warp != now.warp) return clocks_->over(now, warp, tick);
  return (thread == now.number && !several) || tick < clocks_->tick[warp];
}

void SharedMemory::check_cell(const Thread& thread, size_t n, Access access, const Place& place) {
  Cell& cell = cells_[n];
  const auto at = [&] {
    return verb(access) + "byte " + std::to_string(n * kCellBytes) + " of shared memory";
  };
  if (cell.in_flight) {
    machine().fail(FaultKind::kInFlight,
                   at() + ", to which the cp.async of " +
                       text_of(cell.place) + " by thread " + std::to_string(cell.thread) +
                       " is still on its way",
                   place);
  }
  const bool written = cell.tick >= clocks_->base;
  if (!written && access != Access::kWrite) {
    machine().fail(FaultKind::kUninitialised, at() + ", which nobody wrote",
                   place);
  }
  const bool both_atomic = cell.atomic && access == Access::kAtomic;
  if (written && !both_atomic && !ordered(thread, cell.thread, false, cell.tick)) {
    machine().fail(FaultKind::kRace,
                   at() + " while thread " + std::to_string(cell.thread) +
                       " writes it at " + text_of(cell.place) + ": no barrier between",
                   place);
  }
  Reads* reads = &reads_[n * warps_];
  if (access == Access::kRead) {
    Reads& mine = reads[thread.warp];
    const uint32_t tick = clocks_->tick[thread.warp];
    mine.several = mine.tick == tick && (mine.several || mine.thread != thread.number);
    mine.tick = tick;
    mine.thread = static_cast<uint16_t>(thread.number);
    return;
  }
  for (unsigned w = 0; w < warps_; ++w) {
    if (reads[w].tick == 0 || ordered(thread, reads[w].thread, reads[w].several, reads[w].tick)) {
      continue;
    }
    machine().fail(FaultKind::kRace,
                   at() + " while thread " +
                       std::to_string(reads[w].thread) + " reads it: no barrier between",
                   place);
  }
  cell.tick = clocks_->tick[thread.warp];
  cell.thread = static_cast<uint16_t>(thread.number);
  cell.atomic = access == Access::kAtomic;
  cell.place = place;
}

void SharedMemory::access(const Thread& thread, const void* address, unsigned bytes, Access access,
                          const Place& place) {
  const size_t offset = static_cast<size_t>(static_cast<const unsigned char*>(address) - data_);
  if (offset + bytes > bytes_) {
    machine().fail(FaultKind::kOutOfBounds,
                   verb(access) + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                       " of " + std::to_string(bytes_) + " bytes of shared memory",
                   place);
  }
  if (offset % bytes != 0) {
    machine().fail(FaultKind::kMisaligned,
                   verb(access) + std::to_string(bytes) + " bytes at offset " +
                       std::to_string(offset) + " of shared memory",
                   place);
  }
  for (size_t n = offset / kCellBytes; n <= (offset + bytes - 1) / kCellBytes; ++n) {
    check_cell(thread, n, access, place);
  }
}

void SharedMemory::begin_copy(const Thread& thread, const AsyncCopy& copy) {
  access(thread, copy.shared, copy.bytes, Access::kWrite, copy.place);
  std::memset(copy.shared, 0xff, copy.bytes);
  const auto first = static_cast<size_t>(copy.shared - data_) / kCellBytes;
  for (size_t n = 0; n < copy.bytes / kCellBytes; ++n) cells_[first + n].in_flight = true;
}

void SharedMemory::land(const Thread& thread, const AsyncCopy& copy) {
  std::memcpy(copy.shared, copy.global, copy.valid);
  std::memset(copy.shared + copy.valid, 0, copy.bytes - copy.valid);
  const auto first = static_cast<size_t>(copy.shared - data_) / kCellBytes;
  for (size_t n = 0; n < copy.bytes / kCellBytes; ++n) {
    Cell& cell = cells_[first + n];
    cell.in_flight = false;
    cell.tick = clocks_->tick[thread.warp];  // visible to others after the next barrier
  }
}

}  // namespace heddle::emulator
