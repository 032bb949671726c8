// One checkpoint written by several ranks, here threads of this process.
#include <gtest/gtest.h>

#include <atomic>

#include "framework/checkpoint/checkpoint.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "tests/unit/framework/core/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/support/thread_communicator.h"

namespace heddle {
namespace {

using testing::Fault;
using testing::FaultFileSystem;
using test::MemoryFolder;

constexpr int kRanks = 3;

// Rank r has elements [4 r, 4 r + 4) of a moment; the weights are the same everywhere.
struct Part {
  Part(int64_t step, int rank) : weights(12), moments(4) {
    for (int i = 0; i < 12; ++i) weights[i] = value(step, i);
    for (int i = 0; i < 4; ++i) moments[i] = value(step, 100 + 4 * rank + i);
    const std::string slice =
        "adamw.m/w[" + std::to_string(4 * rank) + ":" + std::to_string(4 * rank + 4) + "]";
    contents.step = step;
    contents.model = {{"w", {4, 3}, DType::kF32, weights.data()}};
    contents.optimizer = {{slice, {4}, DType::kF32, moments.data()}};
  }
  static float value(int64_t step, int i) { return static_cast<float>(step) + 0.1f * i; }

  std::vector<float> weights, moments;
  CheckpointContents contents;
};

// How many ranks failed.
int save(const std::string& folder, int64_t step) {
  testing::Job job(kRanks);
  std::atomic<int> failures{0};
  testing::on_all_ranks(&job, MessageLimits{}, [&](Communicator& comm) {
    const Part part(step, comm.rank());
    try {
      save_checkpoint(comm, folder, part.contents, 2);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank "), std::string::npos) << e.what();
      ++failures;
    }
  });
  return failures;
}

void expect_step(const Checkpoint& got, int64_t step) {
  EXPECT_EQ(got.step(), step);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(got.model().tensor("w").f32()[i], Part::value(step, i));
    const std::string slice =
        "adamw.m/w[" + std::to_string(i / 4 * 4) + ":" + std::to_string(i / 4 * 4 + 4) + "]";
    EXPECT_EQ(got.optimizer().tensor(slice).f32()[i % 4], Part::value(step, 100 + i));
  }
}

TEST(CheckpointOfRanks, EveryRankWritesItsPart) {
  MemoryFolder temp;
  ASSERT_EQ(save(temp.path(), 10), 0);
  expect_step(Checkpoint::open(temp.path() + "/step-000010"), 10);
  EXPECT_TRUE(path_exists(temp.path() + "/step-000010/optimizer-00003-of-00003.safetensors"));
}

TEST(CheckpointOfRanks, ALostPartIsNoticed) {
  MemoryFolder temp;
  ASSERT_EQ(save(temp.path(), 10), 0);
  posix_file_system().remove_all(temp.path() + "/step-000010/optimizer-00002-of-00003.safetensors");
  EXPECT_THROW(Checkpoint::open(temp.path() + "/step-000010"), Error);
  EXPECT_THROW(Checkpoint::open(temp.path() + "/step-000010", Verify::kSizes), Error);
}

// Whatever call of whatever rank fails: all ranks agree, and one complete checkpoint is loadable.
TEST(CheckpointOfRanks, AnyFailureIsEveryRanksAndLeavesAGoodCheckpoint) {
  int calls = 0;
  {
    MemoryFolder temp;
    FaultFileSystem count(Fault::kOnce, -1);
    const auto guard = replace_file_system(&count);
    ASSERT_EQ(save(temp.path(), 10), 0);
    calls = count.calls();
  }
  for (const Fault fault : {Fault::kOnce, Fault::kFull}) {
    for (int at = 1; at <= calls; at += fault == Fault::kOnce ? 1 : 5) {
      MemoryFolder temp;
      ASSERT_EQ(save(temp.path(), 10), 0);
      int failures = 0;
      {
        FaultFileSystem broken(fault, at);
        const auto guard = replace_file_system(&broken);
        failures = save(temp.path(), 20);
      }
      EXPECT_TRUE(failures == 0 || failures == kRanks) << failures << " ranks failed at " << at;
      const auto newest = open_newest(temp.path(), nullptr);
      ASSERT_TRUE(newest.has_value());
      expect_step(*newest, newest->step() == 20 ? 20 : 10);
      if (failures == 0) {
        EXPECT_EQ(newest->step(), 20) << at;
      }
      ASSERT_EQ(save(temp.path(), 30), 0) << "the failure must not block later saves";
    }
  }
}

}  // namespace
}  // namespace heddle
