#include "framework/data/batch_plan.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TrainConfig train(int64_t total, int64_t device) {
  TrainConfig c;
  c.total_batch_size = total;
  c.device_batch_size = device;
  return c;
}

TEST(BatchPlan, SharesCoverTheBatchOnceForAnyNumberOfRanks) {
  for (int64_t sequences = 1; sequences <= 12; ++sequences) {
    for (int world = 1; world <= sequences; ++world) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const BatchPlan p = plan_batch(train(sequences * 64, 3), 64, rank, world);
        EXPECT_EQ(p.global_sequences, sequences);
        EXPECT_EQ(p.first, next);
        EXPECT_GE(p.count, 1);
        EXPECT_LE(p.micro_batch, 3);
        EXPECT_GE(p.micro_steps() * p.micro_batch, p.count);
        next += p.count;
      }
      EXPECT_EQ(next, sequences);
    }
  }
}

TEST(BatchPlan, EightOnThreeIsThreeThreeTwo) {
  EXPECT_EQ(plan_batch(train(8 * 16, 8), 16, 0, 3).count, 3);
  EXPECT_EQ(plan_batch(train(8 * 16, 8), 16, 1, 3).count, 3);
  EXPECT_EQ(plan_batch(train(8 * 16, 8), 16, 2, 3).count, 2);
}

}  // namespace
}  // namespace heddle
