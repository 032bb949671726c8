#include "framework/core/activity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace heddle::activity {
namespace {

using ::testing::HasSubstr;

TEST(Activity, PhasesNestAndComeBack) {
  set_step(0);
  EXPECT_EQ(now().phase, Phase::kInit);
  {
    const PhaseScope step(Phase::kStep);
    set_step(7);
    {
      const PhaseScope save(Phase::kCheckpoint);
      EXPECT_EQ(now().phase, Phase::kCheckpoint);
      EXPECT_EQ(now().step, 7);
    }
    EXPECT_EQ(now().phase, Phase::kStep);
  }
  EXPECT_EQ(now().phase, Phase::kInit);
}

TEST(Activity, AnExceptionLeavesThePhaseWhereItHappened) {
  const PhaseScope outer(Phase::kInit);
  try {
    const PhaseScope save(Phase::kCheckpoint);
    throw 1;
  } catch (int) {
    EXPECT_EQ(now().phase, Phase::kCheckpoint);
  }
}

TEST(Activity, CollectivesAreNamedAndNumbered) {
  EXPECT_EQ(now().collective, "");
  {
    const CollectiveScope outer("all_reduce", 17);
    {
      const CollectiveScope inner("reduce_scatter", 18);
      EXPECT_EQ(now().collective, "all_reduce");
    }
    EXPECT_EQ(now().collective, "all_reduce");
    EXPECT_EQ(now().collectives, 17);
    EXPECT_GE(now().collective_seconds, 0);
  }
  EXPECT_EQ(now().collective, "");
}

TEST(Activity, DescribesForPeople) {
  Snapshot s;
  s.phase = Phase::kStep;
  s.step = 12;
  s.collective = "all_reduce";
  s.collectives = 48;
  s.collective_seconds = 3.14;
  EXPECT_EQ(describe(s), "step 12, in all_reduce #48 for 3.1 s");
  s.collective = "";
  s.phase = Phase::kCheckpoint;
  s.seconds = 0.42;
  EXPECT_EQ(describe(s), "step 12, checkpoint, computing for 0.4 s");
  s.step = 0;
  s.phase = Phase::kInit;
  EXPECT_THAT(describe(s), HasSubstr("init"));
}

}  // namespace
}  // namespace heddle::activity
