// heddle plan as a user types it.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

namespace json = boost::json;
constexpr const char* kSpeedRun = HEDDLE_SOURCE_DIR "/configs/runs/speedrun_2x8.yaml";
constexpr const char* kSmall = HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml";

void expect_says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

json::value plan_json(std::vector<std::string> args) {
  args.insert(args.begin(), "plan");
  args.push_back("--json");
  const CommandResult r = run_heddle(args);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r.exit_code == 0 ? json::parse(r.out) : json::value();
}

double figure(const json::value& plan, const char* level, const char* kind) {
  return plan.at("levels").at(level).at("memory").at(kind).to_number<double>();
}

TEST(PlanCommand, SpeedRunWithoutGpuOrData) {
  const CommandResult r = run_heddle({"plan", kSpeedRun});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  expect_says(r.out, {"1384122122 parameters", "16 ranks = 2 hosts x 8, h100", "activations",
                      "scaling efficiency"});
}

TEST(PlanCommand, FlagsReplaceThePlanSection) {
  const json::value plan =
      plan_json({kSpeedRun, "--nodes", "4", "--gpus", "2", "--device", "a100", "train.seed=1"});
  EXPECT_EQ(plan.at("nodes").to_number<int>(), 4);
  EXPECT_EQ(plan.at("ranks_per_node").to_number<int>(), 2);
  EXPECT_EQ(plan.at("device").at("name").as_string(), "a100");
}

TEST(PlanCommand, SaysWhatToChangeWhenItDoesNotFit) {
  const CommandResult r =
      run_heddle({"plan", kSpeedRun, "train.device_batch_size=32", "train.total_batch_size=2097152",
                  "--device", "a100", "--set", "memory_bytes=48e9"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  expect_says(r.out, {"A rank needs", "train.device_batch_size: 8"});
}

TEST(PlanCommand, NodesInARowGiveATable) {
  const CommandResult r = run_heddle({"plan", kSpeedRun, "--nodes", "1,2,4", "--weak"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  expect_says(r.out, {"     1      8", "     2     16", "     4     32"});
}

TEST(PlanCommand, AgreesWithTheTrainerOnMemory) {
  const json::value plan = plan_json({kSmall});
  const CommandResult dry = run_heddle({"train", kSmall, "--dry-run"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  // The dry run prints MiB to one decimal.
  for (const char* kind : {"weights", "gradients", "activations", "logits", "workspace",
                           "optimizer state", "optimizer scratch"}) {
    char line[64];
    std::snprintf(line, sizeof line, "%10.1f MiB %s\n",
                  figure(plan, "none", kind) / (1024.0 * 1024), kind);
    EXPECT_NE(dry.out.find(line), std::string::npos) << line << dry.out;
  }
}

#ifdef HEDDLE_E2E_MPI
TEST(PlanCommand, AgreesWithTwoRanksOnBytes) {
  for (const char* level : {"none", "optimizer", "gradients"}) {
    TempFolder folder;
    const std::string shard = std::string("dist.shard=") + level;
    const CommandResult run =
        run_mpi(2, {"train", kSmall, shard, "log.dir=" + folder.path(), "log.name=run",
                    "train.num_iterations=3", "train.device_batch_size=2", "train.threads=1",
                    "checkpoint.at_end=false"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const json::value plan =
        plan_json({kSmall, "--ranks", "2", "train.device_batch_size=2", "train.threads=1"});
    const double planned = plan.at("levels").at(level).at("sent_bytes").to_number<double>();
    const double counted = read_metric(folder.path("run/metrics.jsonl"), "train/comm_bytes").at(3);
    // The plan is of the rank that sends most; two differ by a few norm pieces.
    EXPECT_NEAR(counted, planned, 0.001 * planned) << level;
  }
}
#endif

TEST(PlanCommand, CalibratedOnARunItPredictsThatRun) {
  TempFolder folder;
  const CommandResult run = run_heddle({"train", kSmall, "log.dir=" + folder.path(), "log.name=run",
                                        "train.num_iterations=8", "checkpoint.at_end=false"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json::value plan =
      plan_json({kSmall, "--calibrate", folder.path("run/metrics.jsonl"), "--ranks", "1"});
  const double measured = plan.at("measured_seconds").to_number<double>();
  const double predicted =
      plan.at("levels").at("none").at("seconds").at("step").to_number<double>();
  // Medians of parts need not add up to the median of the whole.
  EXPECT_NEAR(predicted, measured, 0.1 * measured);
}

TEST(PlanCommand, RefusalsAreClear) {
  struct Case {
    std::vector<std::string> args;
    int exit_code;
    std::vector<std::string> says;
  };
  const Case cases[] = {
      {{"plan", "nowhere.yaml"}, 3, {"nowhere.yaml"}},
      {{"plan", kSpeedRun, "--device", "abacus"}, 2, {"abacus", "h100"}},
      {{"plan", kSpeedRun, "plan.device=abacus"}, 3, {"plan.device", "abacus"}},
      {{"plan", kSpeedRun, "--set", "speed=1"}, 2, {"speed", "peak_flops"}},
      {{"plan", kSpeedRun, "--nodes", "0"}, 2, {"--nodes"}},
      {{"plan", kSpeedRun, "--nodes", "100"}, 3, {"fewer than the 800 ranks"}},
      {{"plan", kSpeedRun, "--ranks", "2", "--gpus", "2"}, 2, {"--ranks"}},
      {{"plan", kSpeedRun, "--calibrate", "nowhere.jsonl"}, 4, {"nowhere.jsonl"}},
      {{"plan", kSpeedRun, "--nonsense"}, 2, {"--nonsense"}},
  };
  for (const Case& c : cases) {
    const CommandResult r = run_heddle(c.args);
    EXPECT_EQ(r.exit_code, c.exit_code) << c.args.back() << r.err;
    expect_says(r.err, c.says);
  }
}

}  // namespace
}  // namespace heddle::test
