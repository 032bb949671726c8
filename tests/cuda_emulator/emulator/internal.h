// What the parts of the emulator share.
//
//   block.cpp          threads of a block as fibers, barriers, meetings of a warp's lanes
//   shared_memory.cpp  shadow of shared memory: bounds, initialisation, happens-before, cp.async
//   device_memory.cpp  the device's heap between inaccessible pages
//   instructions.cpp   shuffles, ldmatrix, mma, atomics, cp.async
//   hooks.cpp          loads and stores of kernel code
//   runtime.cpp        cuda* functions of the host, graphs included
//   streams.h          what waits on streams and events
//   fault.cpp          reports
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "cuda_emulator.h"

struct CUstream_st;

namespace heddle::emulator {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kMostThreads = 1024;
inline constexpr unsigned kMostWarps = kMostThreads / kWarp;
inline constexpr size_t kPlainSharedBytes = 48 * 1024;  // without cudaFuncSetAttribute
inline constexpr size_t kMostSharedBytes = 163 * 1024;  // of a block on sm_80

// A place in kernel code: a call site, or an instruction that fault.cpp looks up.
struct Place {
  const char* file = nullptr;
  unsigned line = 0;
  const void* code = nullptr;

  Place() = default;
  Place(const Location& l) : file(l.file_name()), line(l.line()) {}
  explicit Place(const void* address) : code(address) {}
  bool operator==(const Place&) const = default;
};
std::string text_of(const Place& place);
// The function that holds this address.
std::string function_at(const void* code);

enum class Access { kRead, kWrite, kAtomic };

struct AsyncCopy {
  unsigned char* shared;
  const unsigned char* global;
  unsigned bytes, valid;
  Place place;
};

// What a lane brings to an operation of its warp.
struct Meeting {
  uint32_t mask = 0;
  // Runs once for all; arguments[lane] is null for lanes that do not take part.
  void (*execute)(void* const* arguments, uint32_t lanes) = nullptr;
  void* arguments = nullptr;
  Place place;
};

enum class State { kReady, kAtBarrier, kMeeting, kDone };

struct Thread {
  Index3 index;
  unsigned number = 0, lane = 0, warp = 0;
  State state = State::kReady;
  boost::context::detail::fcontext_t context = nullptr;
  Meeting meeting;
  unsigned barrier_id = 0;
  Place waits_at;
  std::vector<AsyncCopy> open;
  std::deque<std::vector<AsyncCopy>> groups;
};

// The happens-before order of a block's warps. tick counts what a warp does between points of
// order; seen[w][u] is the last tick of warp u that warp w knows to be over.
struct Clocks {
  uint32_t tick[kMostWarps];
  uint32_t seen[kMostWarps][kMostWarps];
  uint32_t base = 0;  // ticks below are of earlier blocks

  void start(unsigned warps, uint32_t first);
  void join(const std::vector<unsigned>& warps);
  bool over(const Thread& now, unsigned warp, uint32_t at) const {
    return at <= seen[now.warp][warp];
  }
};

class SharedMemory {
 public:
  SharedMemory();
  unsigned char* data() const { return data_; }
  bool contains(const void* p) const {
    return p >= data_ && p < data_ + kArenaBytes;
  }
  // For the next block; every byte becomes 0xFF and counts as never written.
  void start(size_t bytes, unsigned warps, Clocks& clocks);
  void access(const Thread& thread, const void* address, unsigned bytes, Access access,
              const Place& place);
  void begin_copy(const Thread& thread, const AsyncCopy& copy);
  void land(const Thread& thread, const AsyncCopy& copy);

 private:
  static constexpr size_t kArenaBytes = 256 * 1024;
  struct Cell {
    uint32_t tick = 0;
    uint16_t thread = 0;
    bool atomic = false, in_flight = false;
    Place place;
  };
  struct Reads {
    uint32_t tick = 0;
    uint16_t thread = 0;
    bool several = false;  // lanes
  };
  void check_cell(const Thread& thread, size_t n, Access access, const Place& place);
  bool ordered(const Thread& now, unsigned thread, bool several, uint32_t tick) const;

  unsigned char* data_;
  size_t bytes_ = 0;
  unsigned warps_ = 0;
  Clocks* clocks_ = nullptr;
  std::vector<Cell> cells_;   // one per 2 bytes
  std::vector<Reads> reads_;  // per cell and warp
};

class DeviceMemory {
 public:
  DeviceMemory();
  void* allocate(size_t bytes);  // null: no room
  bool release(void* pointer);
  bool contains(const void* p) const {
    const auto* c = static_cast<const char*>(p);
    return c >= base_ && c < base_ + kHeapBytes;
  }
  // How a range breaks the bounds of its allocation, as text; empty: it does not.
  std::string outside(const void* address, size_t bytes, bool* freed = nullptr);
  void access(const Thread& thread, const void* address, unsigned bytes, Access access,
              const Place& place, uint32_t block_serial, uint32_t launch_serial);
  size_t used() const { return used_; }
  static constexpr size_t kHeapBytes = size_t{1} << 38;
  // 8 GiB, or HEDDLE_EMULATED_MEMORY_MIB.
  size_t capacity() const { return capacity_; }

 private:
  struct Allocation {
    char* data;
    size_t bytes;
    bool live;
    // Last writer of every 2 bytes: serial of its block, top bit: by an atomic.
    std::unique_ptr<uint32_t[], void (*)(void*)> writers;
  };
  Allocation* find(const char* p);

  char* base_;
  char* next_;
  size_t used_ = 0, capacity_ = size_t{8} << 30;
  std::vector<Allocation> allocations_;  // ascending
  Allocation* last_ = nullptr;
};

// The block that runs, and all that outlives it.
class Machine {
 public:
  int run(const Launch& launch);

  // Called by a thread of the block.
  void wait_at_barrier(unsigned id, unsigned count, const Place& place);
  void meet(const Meeting& meeting);
  void sync_warp(uint32_t mask, const Place& place);
  void access(const void* address, unsigned bytes, Access access, const Place& place);
  [[noreturn]] void fail(FaultKind kind, std::string what, const Place& place);

  const Launch& launch() const { return *launch_; }
  Index3 block_index() const { return block_index_; }
  Thread& thread(unsigned n) { return threads_[n]; }

  SharedMemory shared;
  DeviceMemory device;
  Counters counters;
  uint64_t seed = 0;
  bool host_memory_allowed = false;
  std::optional<Fault> fault;

 private:
  void run_block();
  void start_threads();
  static void enter(boost::context::detail::transfer_t from);
  void suspend();  // the current thread, back to run_block
  void resume(Thread& thread);
  bool run_ready_warp();
  void finish(Thread& thread);
  void release_barrier(unsigned id);
  void check_finish(const Thread& thread);
  void meet_now(Thread& thread);
  void report_deadlock();
  unsigned lanes_of(unsigned warp) const;
  Fault describe(FaultKind kind, std::string what, const Place& place, const Thread& thread) const;

  const Launch* launch_ = nullptr;
  Index3 block_index_;
  std::vector<Thread> threads_;
  unsigned alive_ = 0, done_ = 0;
  struct Waiting {
    unsigned arrived = 0, count = 0;
  };
  Waiting barriers_[16];
  Clocks clocks_;
  uint32_t last_tick_ = 0;
  uint32_t block_serial_ = 0, launch_serial_ = 0;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  std::mt19937_64 random_;
  char* stacks_ = nullptr;
  bool failed_ = false;
};

Machine& machine();
// Null outside of kernels. In the static TLS block: hooks.cpp asks at every load and store.
extern thread_local Thread* current [[gnu::tls_model("initial-exec")]];

// Does the work now, or, when the stream is being captured, leaves it to the launches of the graph.
// Work and result are a cudaError_t.
using Work = std::function<int()>;
int enqueue(CUstream_st* stream, Work work);

}  // namespace heddle::emulator
