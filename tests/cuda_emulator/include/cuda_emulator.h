// The emulator as kernels and tests see it: what the shadow headers of the CUDA toolkit are built
// from, the hardware instructions behind kernels/cuda/hardware, and the controls for tests.
//
// A launch runs on the calling thread and is over when it returns, unless something that takes its
// time comes before it on its stream. Blocks run one after another,
// the threads of a block as fibers. Plain loads and stores of kernel code are seen because that code
// is compiled with -fsanitize=thread and linked with the emulator's own __tsan_* functions
// (emulator/hooks.cpp); what is no plain load or store reports itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <string>

namespace heddle::emulator {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

enum class FaultKind {
  kOutOfBounds,
  kUseAfterFree,
  kMisaligned,
  kHostMemory,          // a kernel touches memory that is not the device's
  kUninitialised,       // reads shared memory that nobody wrote
  kRace,                // shared memory: no barrier between two accesses
  kBlockRace,           // device memory: two blocks of one launch, at least one plain write
  kInFlight,            // touches bytes on which a cp.async is not waited for
  kLostCopy,            // ends with a cp.async that nobody waited for
  kDivergentBarrier,    // threads of a block wait at different places, or some have ended
  kDivergentCollective  // lanes of a warp meet in different operations, or some never come
};
const char* name_of(FaultKind kind);

// What a kernel did wrong. The launch that did it returned cudaErrorLaunchFailure.
struct Fault {
  FaultKind kind;
  std::string kernel;
  Index3 block, thread;
  std::string what;   // "reads 4 bytes, 8 bytes past the end of an allocation of 64 bytes"
  std::string where;  // "kernels/cuda/attention/plain.h:120"

  std::string text() const;
};

struct Counters {
  int64_t launches = 0;  // of kernels, those of graphs included
  // What the host enqueued: kernels, products, copies, fills, graphs.
  int64_t enqueued = 0;
  int64_t graphs = 0;  // launched
  int64_t blocks = 0;
  int64_t synchronisations = 0;  // stream, event or device; and copies that wait
  int64_t allocations = 0;
  int64_t device_bytes_loaded = 0;  // by kernels
  int64_t matrix_products = 0;      // mma instructions, per warp
};

// The last fault, once.
std::optional<Fault> take_fault();
Counters counters();
void reset_counters();
// Order of blocks, warps and lanes: 0 ascending, anything else shuffled by it.
void set_schedule(uint64_t seed);
// Kernels may touch memory of the host: for callers that bring guard pages of their own.
void allow_host_memory(bool allowed);
// The runtime call after `calls` more of those that can fail returns `error` (a cudaError_t).
void inject_error(int error, int64_t calls);
// Work on a stream (a cudaStream_t) that takes its time, such as a library's that waits for other
// processes: `step` is called once everything before it is done, again and again, until it says that
// it is done. It must not wait itself.
void enqueue_external(void* stream, std::function<bool()> step);

// ---- what kernel code calls -------------------------------------------------------------------

Index3 thread_index();
Index3 block_index();
Index3 block_size();
Index3 grid_size();
unsigned char* dynamic_shared();

using Location = std::source_location;

// count 0: all threads of the block.
void barrier(unsigned id, unsigned count, Location where);
void sync_warp(uint32_t mask, Location where);
// Every lane gets the value of lane `source`, which must take part.
uint64_t shuffle(uint32_t mask, uint64_t value, unsigned source, Location where);
uint32_t ballot(uint32_t mask, bool predicate, Location where);

// Says that the calling thread is about to touch these bytes in one instruction.
void touch(const void* address, unsigned bytes, bool write, Location where);
float atomic_add(float* address, float value, Location where);
unsigned atomic_add(unsigned* address, unsigned value, Location where);
int atomic_add(int* address, int value, Location where);
int atomic_max(int* address, int value, Location where);

// cp.async of `bytes` (4, 8 or 16), of which the last bytes - valid are zeros that are not read.
void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid, Location where);
void commit_async(Location where);
void wait_async(unsigned newest_left, Location where);

// ldmatrix.x4 (.trans): lanes 8i..8i+7 name the rows of matrix i.
void ldmatrix(uint32_t registers[4], const void* row, bool transposed, Location where);

// mma.sync.m16n8k16, fp32 sums: d = a b + d.
enum class Half { kBf16, kFp16 };
void mma(float d[4], const uint32_t a[4], const uint32_t b[2], Half type, Location where);

// ---- what a launch is made of -----------------------------------------------------------------

struct Launch {
  const void* kernel = nullptr;
  void (*invoke)(void* arguments) = nullptr;  // calls the kernel
  void* arguments = nullptr;
  size_t argument_bytes = 0;
  Index3 grid, block;
  size_t shared_bytes = 0;
};
// A cudaError_t.
int run(const Launch& launch);
void allow_shared_bytes(const void* kernel, size_t bytes);

}  // namespace heddle::emulator
