#include "framework/report/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/framework/report/fixtures.h"

namespace heddle::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What to do when a rank has `bytes` and nothing is sharded.
std::string advice_with(PlanRequest r, double bytes) {
  r.device.memory_bytes = bytes + make_plan(r).rank_memory * -1 + r.device.memory_bytes;
  return advise(r, make_plan(r), ShardLevel::kNone).value_or("fits");
}

double need(const PlanRequest& r, ShardLevel level, int64_t micro_batch) {
  PlanRequest changed = r;
  changed.config.train.device_batch_size = micro_batch;
  return make_plan(changed).level(level).memory_bytes();
}

TEST(Advice, NothingWhenItFits) {
  const PlanRequest r = request(1, 2);
  EXPECT_EQ(advice_with(r, need(r, ShardLevel::kNone, 4)), "fits");
}

TEST(Advice, ShardingWhenThatIsEnough) {
  const PlanRequest r = request(1, 2);
  const std::string text = advice_with(r, need(r, ShardLevel::kOptimizer, 4));
  EXPECT_THAT(text, HasSubstr("set dist.shard: optimizer"));
  EXPECT_THAT(text, Not(HasSubstr("device_batch_size")));
}

TEST(Advice, SmallerMicroBatchOtherwise) {
  const PlanRequest r = request(1, 2);
  const std::string text = advice_with(r, need(r, ShardLevel::kOptimizer, 2));
  EXPECT_THAT(text, HasSubstr("train.device_batch_size: 2"));
}

TEST(Advice, AloneThereIsNothingToShard) {
  const PlanRequest r = request(1, 1);
  const std::string text = advice_with(r, need(r, ShardLevel::kNone, 1));
  EXPECT_THAT(text, HasSubstr("set train.device_batch_size: 1"));
  EXPECT_THAT(text, Not(HasSubstr("dist.shard")));
}

TEST(Advice, MoreHostsWhenOneIsTooSmall) {
  PlanRequest r = request(1, 2);
  r.config.model.n_embd = 2048;  // state far above a bucket and a sequence
  PlanRequest two = r;
  two.topology.hosts = 2;
  const std::string text = advice_with(r, need(two, ShardLevel::kGradients, 1));
  EXPECT_THAT(text, HasSubstr("use 2 hosts of 2 ranks with dist.shard: gradients"));
}

TEST(Advice, OtherwiseWhatIsTooLarge) {
  const PlanRequest r = request(1, 2);
  EXPECT_THAT(advice_with(r, 1000), HasSubstr("lower model."));
}

}  // namespace
}  // namespace heddle::test
