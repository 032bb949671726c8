#include "framework/report/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/optim/ownership.h"
#include "framework/optim/plan.h"
#include "framework/optim/sharded_step.h"
#include "framework/report/plan_text.h"
#include "tests/unit/framework/report/fixtures.h"

namespace heddle::test {
namespace {

TEST(Plan, SpeedRunIsNanochatsDepth24) {
  PlanRequest r = request(2, 8);
  r.config = load_config(HEDDLE_SOURCE_DIR "/configs/runs/speedrun_2x8.yaml");
  r.device = find_device("h100");
  r.attention_workspace = attention_workspace_of(r);
  const RunPlan plan = make_plan(r);
  // nanochat's own figures for depth 24, T 2048, SSSL.
  EXPECT_EQ(plan.params.total, 1'384'122'122);
  EXPECT_NEAR(plan.flops_per_token, 4.7752e9, 0.0001e9);
  EXPECT_EQ(plan.global_sequences, 512);
  EXPECT_EQ(plan.rank_sequences, 32);
  EXPECT_EQ(plan.micro_steps, 2);
  // 8 tokens a parameter of block matrices and head.
  const int64_t horizon = 8 * (plan.params.transformer_matrices + plan.params.lm_head);
  EXPECT_EQ(r.config.train.num_iterations, horizon / r.config.train.total_batch_size);
  for (const LevelPlan& l : plan.levels) EXPECT_TRUE(plan.fits(l)) << shard_name(l.level);
}

TEST(Plan, MemoryOfARankAloneIsWhatTheTrainerReports) {
  const PlanRequest r = request(1, 1);
  const RunPlan plan = make_plan(r);
  const LevelPlan& none = plan.level(ShardLevel::kNone);
  for (const MemoryItem& item : plan_memory(plan.spec, 4, 256, true, 4000)) {
    EXPECT_EQ(bytes_of(none, item.kind), item.bytes) << item.kind;
  }
  const OptimPlan optim =
      plan_optimizer(r.config.optim, ParamLayout(plan.spec), r.config.train.total_batch_size);
  EXPECT_EQ(bytes_of(none, "optimizer state"), static_cast<size_t>(optim.state_bytes()));
  EXPECT_EQ(bytes_of(none, "optimizer scratch"), static_cast<size_t>(optim.scratch_bytes(1)));
  EXPECT_EQ(bytes_of(none, "key/value cache"), 2u * 4 * 65 * 128 * 4);
  EXPECT_EQ(bytes_of(none, "communication"), 0u);
  EXPECT_EQ(none.sent_bytes, 0);
  EXPECT_DOUBLE_EQ(none.efficiency, 1);
}

TEST(Plan, MemoryAndBytesAreThoseOfTheHeaviestRank) {
  PlanRequest r = request(1, 3);
  r.config.dist.bucket_mb = 0.5;
  const RunPlan plan = make_plan(r);
  const Ownership ownership(plan.spec, r.config.optim, 3, 512 * 1024);
  for (const LevelPlan& l : plan.levels) {
    ShardOptions options;
    options.level = l.level;
    options.micro_steps = 3;  // 11 sequences of at most 4
    size_t state = 0, gradients = 0, buckets = 0;
    int64_t sent = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const OptimPlan p = plan_optimizer(r.config.optim, ownership, l.level, rank, 8192);
      state = std::max(state, static_cast<size_t>(p.state_bytes()));
      const auto items = plan_gradient_memory(options, ownership, rank);
      gradients = std::max(gradients, items[0].bytes);
      if (items.size() > 1) buckets = std::max(buckets, items[1].bytes);
      sent = std::max(sent, step_bytes(options, ownership, rank));
    }
    EXPECT_EQ(bytes_of(l, "optimizer state"), state) << shard_name(l.level);
    EXPECT_EQ(bytes_of(l, "gradients"), gradients) << shard_name(l.level);
    EXPECT_EQ(bytes_of(l, "gradient buckets"), buckets) << shard_name(l.level);
    EXPECT_EQ(l.sent_bytes, static_cast<double>(sent)) << shard_name(l.level);
  }
}

TEST(Plan, ShardingTakesMemoryAwayLevelByLevel) {
  const RunPlan plan = make_plan(request(1, 4));
  const LevelPlan& none = plan.level(ShardLevel::kNone);
  const LevelPlan& optimizer = plan.level(ShardLevel::kOptimizer);
  const LevelPlan& gradients = plan.level(ShardLevel::kGradients);
  const double share = static_cast<double>(bytes_of(none, "optimizer state")) / 4;
  EXPECT_NEAR(static_cast<double>(bytes_of(optimizer, "optimizer state")), share, 0.25 * share);
  EXPECT_EQ(bytes_of(gradients, "optimizer state"), bytes_of(optimizer, "optimizer state"));
  EXPECT_EQ(bytes_of(optimizer, "gradients"), bytes_of(none, "gradients"));
  EXPECT_LT(bytes_of(gradients, "gradients"), bytes_of(none, "gradients"));
  EXPECT_EQ(bytes_of(gradients, "activations"), bytes_of(none, "activations"));
  EXPECT_LT(optimizer.time.optimizer, none.time.optimizer);
  EXPECT_GT(gradients.sent_bytes, optimizer.sent_bytes);  // two micro-steps
}

TEST(Plan, Bf16AddsACopyOfTheWeights) {
  PlanRequest r = request(1, 1);
  const RunPlan fp32 = make_plan(r);
  r.device.compute_bytes = 2;
  const RunPlan bf16 = make_plan(r);
  const LevelPlan& a = fp32.levels.front();
  const LevelPlan& b = bf16.levels.front();
  EXPECT_EQ(bytes_of(b, "activations"), bytes_of(a, "activations"));
  EXPECT_EQ(bytes_of(b, "weights"), bytes_of(a, "weights"));
  EXPECT_EQ(bytes_of(b, "weights for products"), bytes_of(a, "weights") / 2);
}

TEST(Plan, MoreRanksTakeLessTimeAndAreLessEfficient) {
  double seconds = 1e9, efficiency = 2;
  for (const int64_t ranks : {1, 2, 4, 8, 16, 32}) {
    PlanRequest r = request(1, ranks);
    r.device.local.latency_s = 1e-5;
    const LevelPlan l = make_plan(r).level(ShardLevel::kNone);
    EXPECT_LT(l.time.compute(), seconds) << ranks;
    EXPECT_LT(l.efficiency, efficiency) << ranks;
    seconds = l.time.compute();
    efficiency = l.efficiency;
  }
}

TEST(Plan, UnevenSharesFollowTheLargest) {
  const RunPlan plan = make_plan(request(1, 5));  // 32 sequences: 7, 7, 6, 6, 6
  EXPECT_EQ(plan.rank_sequences, 7);
  EXPECT_EQ(plan.micro_steps, 2);
}

TEST(Plan, MoreRanksThanSequencesAreRefused) {
  try {
    make_plan(request(4, 16));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("fewer than the 64 ranks"));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("train.total_batch_size to 16384"));
  }
}

TEST(Plan, TextAndJsonCarryTheSameFigures) {
  const PlanRequest r = request(2, 2);
  const RunPlan plan = make_plan(r);
  const PlanNotes notes{ShardLevel::kOptimizer, "set this", 2 * plan.levels[1].time.total()};
  const std::string text = plan_text(r, plan, notes);
  for (const char* part : {"optimizer *", "4 ranks = 2 hosts x 2", "set this", "-50.0 %"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(part));
  }
  const json::object object = plan_json(r, plan, notes);
  EXPECT_EQ(object.at("parameters").at("total").to_number<int64_t>(), plan.params.total);
  const json::value& level = object.at("levels").at("optimizer");
  EXPECT_EQ(level.at("sent_bytes").to_number<double>(), plan.levels[1].sent_bytes);
  EXPECT_EQ(level.at("seconds").at("step").to_number<double>(), plan.levels[1].time.total());
  EXPECT_EQ(level.at("memory_total").to_number<double>(), plan.levels[1].memory_bytes());
}

TEST(Plan, ScalingIsRelativeToTheFirstRow) {
  std::vector<ScalingRow> rows;
  for (const int64_t hosts : {1, 2}) {
    const PlanRequest r = request(hosts, 2);
    rows.push_back({r.topology, make_plan(r)});
  }
  const std::string text = scaling_text(rows);
  EXPECT_THAT(text, ::testing::HasSubstr("100.0"));
  EXPECT_EQ(scaling_json(rows).size(), 2u);
}

}  // namespace
}  // namespace heddle::test
