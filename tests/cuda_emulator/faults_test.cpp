// The emulator proves itself: right kernels run under every schedule, each seeded fault is caught.
#include "tests/cuda_emulator/faults.h"

#include <gtest/gtest.h>

#include <optional>

#include "cuda_emulator.h"

namespace heddle::emulator::testing {
namespace {

using enum Seeded;
using enum FaultKind;

struct Row {
  const char* name;
  Outcome (*run)(Seeded);
  Seeded fault;
  std::optional<FaultKind> caught;                  // none: it gives wrong numbers
  std::optional<FaultKind> or_else = std::nullopt;  // what an unlucky order shows first
};

const Row kRows[] = {
    {"a missing barrier", run_reverse, kNoBarrier, kRace, kUninitialised},
    {"no barrier before shared memory is used again", run_reverse, kNoBarrierBeforeReuse, kRace},
    {"a barrier in a branch", run_reverse, kBarrierInBranch, kDivergentBarrier},
    {"threads that return before a barrier", run_reverse, kEarlyReturn, kDivergentBarrier},
    {"one barrier at two places", run_reverse, kBarriersAtTwoPlaces, kDivergentBarrier},
    {"shared memory, one element too far", run_reverse, kSharedOutOfBounds, kOutOfBounds},
    {"shared memory, misaligned", run_reverse, kSharedMisaligned, kMisaligned},
    {"shared memory that nobody wrote", run_reverse, kSharedUnwritten, kUninitialised},
    {"a missing tail guard, reading", run_reverse, kNoTailGuardOnRead, kOutOfBounds},
    {"a missing tail guard, writing", run_reverse, kNoTailGuardOnWrite, kOutOfBounds},
    {"a sum in shared memory without atomics", run_reverse, kPlainSharedSum, kRace},
    {"a missing __syncwarp", run_exchange, kNoSyncWarp, kRace, kUninitialised},
    {"a shuffle in a branch", run_exchange, kShuffleInBranch, kDivergentCollective},
    {"a shuffle from a lane that takes no part", run_exchange, kShuffleOfAbsentLane,
     kDivergentCollective},
    {"a mask that does not name the caller", run_exchange, kMaskWithoutCaller,
     kDivergentCollective},
    {"a lane that returns before a shuffle", run_exchange, kLaneLeavesEarly, kDivergentCollective},
    {"cp.async without a wait", run_pipeline, kNoWait, kInFlight},
    {"a wait that leaves one group too many", run_pipeline, kWaitLeavesOneTooMany, kInFlight},
    {"cp.async without a commit", run_pipeline, kNoCommit, kInFlight},
    {"the other stage", run_pipeline, kWrongStage, kInFlight, kRace},
    {"no barrier after the wait", run_pipeline, kNoBarrierAfterWait, kRace, kInFlight},
    {"no barrier before the next copy", run_pipeline, kNoBarrierBeforeCopy, kRace, kInFlight},
    {"cp.async that nobody waits for", run_pipeline, kCopyNeverWaitedFor, kLostCopy},
    {"cp.async from a misaligned address", run_pipeline, kCopyMisaligned, kMisaligned},
    {"cp.async without a tail guard", run_pipeline, kCopyWithoutTailGuard, kOutOfBounds},
    {"swapped registers of an operand", run_product, kSwappedOperands, std::nullopt},
    {"ldmatrix without .trans", run_product, kNotTransposed, std::nullopt},
    {"a wrong fragment layout", run_product, kRowsOfFragmentSwapped, std::nullopt},
    {"ldmatrix from a misaligned row", run_product, kMisalignedMatrixRow, kMisaligned},
    {"mma by half a warp", run_product, kHalfWarpProduct, kDivergentCollective},
    {"a mask off by one", run_window, kMaskOffByOne, std::nullopt},
    {"a sum that is not reduced over lanes", run_window, kSumNotReduced, std::nullopt},
    {"blocks that add without atomics", run_block_sums, kPlainSumOfBlocks, kBlockRace},
};

constexpr uint64_t kSchedules[] = {0, 1, 2, 3};

class Faults : public ::testing::Test {
 protected:
  void TearDown() override {
    set_schedule(0);
    take_fault();
    (void)cudaGetLastError();
  }
};

TEST_F(Faults, RightKernelsRunUnderEverySchedule) {
  for (const uint64_t schedule : kSchedules) {
    set_schedule(schedule);
    for (const auto run :
         {run_reverse, run_exchange, run_pipeline, run_product, run_window, run_block_sums}) {
      const Outcome o = run(kNone);
      ASSERT_EQ(o.error, cudaSuccess) << cudaGetErrorString(o.error);
      EXPECT_EQ(o.got, o.want);
    }
  }
}

TEST_F(Faults, EachSeededFaultIsCaughtUnderEverySchedule) {
  for (const uint64_t schedule : kSchedules) {
    set_schedule(schedule);
    for (const Row& row : kRows) {
      SCOPED_TRACE(row.name);
      const Outcome o = row.run(row.fault);
      const std::optional<Fault> fault = take_fault();
      if (!row.caught) {
        EXPECT_EQ(o.error, cudaSuccess) << (fault ? fault->text() : "");
        EXPECT_NE(o.got, o.want);
        continue;
      }
      EXPECT_EQ(o.error, cudaErrorLaunchFailure);
      ASSERT_TRUE(fault) << "not caught";
      EXPECT_TRUE(fault->kind == row.caught || fault->kind == row.or_else) << fault->text();
    }
  }
  EXPECT_GE(std::size(kRows), 20u);
}

TEST_F(Faults, AReportNamesKernelBlockThreadAndLine) {
  run_reverse(kNoTailGuardOnWrite);
  const auto fault = take_fault();
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->kernel.find("reverse"), std::string::npos) << fault->kernel;
  EXPECT_EQ(fault->block.x, 0u);
  EXPECT_GE(fault->thread.x, 61u);
  EXPECT_NE(fault->where.find("tests/cuda_emulator/faults.cu:"), std::string::npos) << fault->where;
  const std::string offset = std::to_string(4 * fault->thread.x);
  EXPECT_EQ(fault->what, "writes 4 bytes, at offset " + offset + " of an allocation of 244 bytes");
}

TEST_F(Faults, MemoryThatIsNotTheDevices) {
  EXPECT_EQ(run_on_host_memory().error, cudaErrorLaunchFailure);
  EXPECT_EQ(take_fault()->kind, kHostMemory);
  EXPECT_EQ(run_on_freed_memory().error, cudaErrorLaunchFailure);
  EXPECT_EQ(take_fault()->kind, kUseAfterFree);
}

TEST_F(Faults, WrongLaunchesAreErrors) {
  EXPECT_EQ(launch_with_shared_bytes(48 * 1024), cudaSuccess);
  EXPECT_EQ(launch_with_shared_bytes(48 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_EQ(launch_with_threads(2048), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch_with_threads(0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Faults, CountsLaunchesAndWaits) {
  reset_counters();
  run_window(kNone);
  const Counters c = counters();
  EXPECT_EQ(c.launches, 1);
  EXPECT_EQ(c.blocks, 32);
  EXPECT_EQ(c.allocations, 2);
  EXPECT_EQ(c.synchronisations, 2);  // two copies that wait
}

TEST_F(Faults, InjectedErrorsComeOnce) {
  float* p = nullptr;
  inject_error(cudaErrorMemoryAllocation, 1);
  EXPECT_EQ(cudaMalloc(&p, 16), cudaSuccess);
  float* q = nullptr;
  EXPECT_EQ(cudaMalloc(&q, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&q, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(q), cudaSuccess);
  EXPECT_EQ(cudaFree(q), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace heddle::emulator::testing
