// Small right kernels and the faults that can be put into them, by name.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace heddle::emulator::testing {

enum class Seeded : int {
  kNone,
  // reverse: through shared memory, twice
  kNoBarrier,
  kNoBarrierBeforeReuse,
  kBarrierInBranch,
  kEarlyReturn,
  kBarriersAtTwoPlaces,
  kSharedOutOfBounds,
  kSharedMisaligned,
  kSharedUnwritten,
  kNoTailGuardOnRead,
  kNoTailGuardOnWrite,
  kPlainSharedSum,
  // exchange: lanes of a warp
  kNoSyncWarp,
  kShuffleInBranch,
  kShuffleOfAbsentLane,
  kMaskWithoutCaller,
  kLaneLeavesEarly,
  // pipeline: two stages of cp.async
  kNoWait,
  kWaitLeavesOneTooMany,
  kNoCommit,
  kWrongStage,
  kNoBarrierAfterWait,
  kNoBarrierBeforeCopy,
  kCopyNeverWaitedFor,
  kCopyMisaligned,
  kCopyWithoutTailGuard,
  // product: ldmatrix and mma
  kSwappedOperands,
  kNotTransposed,
  kMisalignedMatrixRow,
  kHalfWarpProduct,
  kRowsOfFragmentSwapped,
  // window: sums over a range
  kMaskOffByOne,
  kSumNotReduced,
  // between blocks
  kPlainSumOfBlocks,
};

// What a run gave. A launch error and its fault, or numbers.
struct Outcome {
  cudaError_t error = cudaSuccess;
  std::vector<float> got, want;
};
Outcome run_reverse(Seeded fault);
Outcome run_exchange(Seeded fault);
Outcome run_pipeline(Seeded fault);
Outcome run_product(Seeded fault);
Outcome run_window(Seeded fault);
Outcome run_block_sums(Seeded fault);
// reverse on memory that is not the device's, or not any more.
Outcome run_on_host_memory();
Outcome run_on_freed_memory();
// The launch itself is wrong.
cudaError_t launch_with_shared_bytes(size_t bytes);
cudaError_t launch_with_threads(unsigned threads);

}  // namespace heddle::emulator::testing
