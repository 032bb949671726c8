#include "framework/train/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace heddle {
namespace {

using activity::Phase;
using ::testing::HasSubstr;

constexpr double kTimeout = 10;

Heartbeat beat(int64_t count, Phase phase = Phase::kStep, int64_t step = 5) {
  Heartbeat b;
  b.count = count;
  b.host = "n1";
  b.now.phase = phase;
  b.now.step = step;
  return b;
}

Heartbeat waiting(int64_t count, int64_t number, double seconds) {
  Heartbeat b = beat(count);
  b.now.collective = "reduce_scatter";
  b.now.collectives = number;
  b.now.collective_seconds = seconds;
  return b;
}

TEST(Heartbeat, TextsComeBack) {
  Heartbeat want = waiting(7, 48, 3.25);
  want.now.seconds = 0.5;
  const auto got = heartbeat_from_text(heartbeat_to_text(want));
  ASSERT_TRUE(got);
  EXPECT_EQ(heartbeat_to_text(*got), heartbeat_to_text(want));
  EXPECT_FALSE(heartbeat_from_text("garbage"));
  EXPECT_FALSE(heartbeat_from_text("[1]"));

  Suspicion s;
  s.kind = FailureKind::kSilent;
  s.failed = {2, "n1", 13, "computing", "no \"sign\" of life"};
  const auto back = suspicion_from_text(suspicion_to_text(s));
  ASSERT_TRUE(back);
  EXPECT_EQ(suspicion_to_text(*back), suspicion_to_text(s));
  EXPECT_FALSE(suspicion_from_text("{}"));
}

TEST(Heartbeat, LongPhasesHaveALongerDeadline) {
  activity::Snapshot now;
  now.seconds = kTimeout + 1;
  now.phase = Phase::kStep;
  EXPECT_TRUE(is_stuck(now, kTimeout));
  for (const Phase phase : {Phase::kInit, Phase::kCheckpoint, Phase::kEvaluate, Phase::kSample}) {
    now.phase = phase;
    EXPECT_FALSE(is_stuck(now, kTimeout)) << activity::phase_name(phase);
  }
  now.phase = Phase::kCheckpoint;
  now.seconds = phase_limit(Phase::kCheckpoint, kTimeout) + 1;
  EXPECT_TRUE(is_stuck(now, kTimeout));
  // Who waits for others is not stuck itself.
  now.phase = Phase::kStep;
  now.collective = "barrier";
  EXPECT_FALSE(is_stuck(now, kTimeout));
}

// Calls judge() every second from `from` to `to`; ranks in `alive` beat each time.
std::optional<Suspicion> run(HeartbeatJudge& judge, double from, double to,
                             const std::vector<int>& alive) {
  std::optional<Suspicion> s;
  for (double t = from; t <= to && !s; t += 1) {
    for (const int r : alive) judge.hear(r, beat(static_cast<int64_t>(t * 10)), t);
    s = judge.judge(t);
  }
  return s;
}

TEST(HeartbeatJudge, NamesTheSilentRankAfterTheTimeoutAndNotBefore) {
  HeartbeatJudge judge(3, kTimeout, 0);
  EXPECT_FALSE(run(judge, 1, 5, {0, 1, 2}));
  EXPECT_FALSE(run(judge, 6, 15, {0, 2}));
  const auto s = run(judge, 16, 17, {0, 2});
  ASSERT_TRUE(s);
  EXPECT_EQ(s->failed.rank, 1);
  EXPECT_EQ(s->kind, FailureKind::kSilent);
  EXPECT_EQ(s->failed.host, "n1");
  EXPECT_EQ(s->failed.step, 5);
  EXPECT_THAT(s->failed.why, HasSubstr("11.0 s"));
}

TEST(HeartbeatJudge, OfTwoSilentRanksTheOneThatFellSilentFirst) {
  HeartbeatJudge judge(3, kTimeout, 0);
  EXPECT_FALSE(run(judge, 1, 4, {0, 1, 2}));
  EXPECT_FALSE(run(judge, 5, 6, {0, 1}));
  const auto s = run(judge, 7, 30, {0});
  ASSERT_TRUE(s);
  EXPECT_EQ(s->failed.rank, 2);
}

TEST(HeartbeatJudge, ARepeatedHeartbeatIsNoSignOfLife) {
  HeartbeatJudge judge(2, kTimeout, 0);
  std::optional<Suspicion> s;
  for (double t = 1; t < 20 && !s; t += 1) {
    judge.hear(0, beat(static_cast<int64_t>(t)), t);
    judge.hear(1, beat(1), t);
    s = judge.judge(t);
  }
  ASSERT_TRUE(s);
  EXPECT_EQ(s->failed.rank, 1);
}

TEST(HeartbeatJudge, WhoHasLeftIsNotMissed) {
  HeartbeatJudge judge(2, kTimeout, 0);
  judge.leave(1);
  EXPECT_FALSE(run(judge, 1, 100, {0}));
}

TEST(HeartbeatJudge, ItsOwnAbsenceIsNobodysSilence) {
  HeartbeatJudge judge(2, kTimeout, 0);
  EXPECT_FALSE(run(judge, 1, 3, {0, 1}));
  // The machine slept; heartbeats that were on their way have not arrived yet.
  EXPECT_FALSE(judge.judge(300));
  EXPECT_FALSE(run(judge, 301, 309, {0}));
  EXPECT_TRUE(run(judge, 310, 320, {0}));
}

std::optional<Suspicion> judge_waiting(const std::vector<Heartbeat>& beats) {
  HeartbeatJudge judge(static_cast<int>(beats.size()), kTimeout, 0);
  for (size_t r = 0; r < beats.size(); ++r) judge.hear(static_cast<int>(r), beats[r], 1);
  return judge.judge(1);
}

TEST(HeartbeatJudge, RanksThatAllWaitAreEndedAndTheOneBehindIsNamed) {
  const auto behind = judge_waiting({waiting(1, 48, 11), waiting(1, 47, 12), waiting(1, 48, 11)});
  ASSERT_TRUE(behind);
  EXPECT_EQ(behind->failed.rank, 1);
  const auto level = judge_waiting({waiting(1, 48, 11), waiting(1, 48, 12)});
  ASSERT_TRUE(level);
  EXPECT_EQ(level->failed.rank, -1);
  EXPECT_THAT(level->failed.text(), HasSubstr("all ranks"));
}

TEST(HeartbeatJudge, WaitingForARankThatWorksIsInOrder) {
  EXPECT_FALSE(judge_waiting({beat(1, Phase::kCheckpoint), waiting(1, 48, 90)}));
  EXPECT_FALSE(judge_waiting({waiting(1, 48, 9), waiting(1, 48, 90)}));
}

}  // namespace
}  // namespace heddle
