// Sharding is invisible: what a run learns does not depend on how many ranks share its batch.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

using Args = std::vector<std::string>;

// The golden model on recall stories: its parameters have no zeros, so rounding is not amplified.
Args golden_args(const std::string& out, int ranks) {
  return {"train", HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
          "train.init_from=" HEDDLE_SOURCE_DIR "/tests/golden/sssl_gqa.safetensors",
          "log.dir=" + out, "log.name=ranks" + std::to_string(ranks)};
}

std::map<int64_t, double> losses(const std::string& out, int ranks) {
  return read_metric(out + "/ranks" + std::to_string(ranks) + "/metrics.jsonl", "train/loss");
}

void expect_same(const std::map<int64_t, double>& want, const std::map<int64_t, double>& got,
                 int64_t steps, int ranks) {
  ASSERT_GE(static_cast<int64_t>(got.size()), steps) << ranks << " ranks";
  for (int64_t step = 1; step <= steps; ++step) {
    ASSERT_TRUE(want.contains(step) && got.contains(step));
    EXPECT_LE(std::abs(got.at(step) - want.at(step)), 1e-5 * want.at(step))
        << "step " << step << " with " << ranks << " ranks";
  }
}

TEST(Sharding, TwentyStepsFromGoldenParametersAgreeForOneToFourRanks) {
  TempFolder folder;
  const CommandResult alone = run_heddle(golden_args(folder.path(), 1));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto want = losses(folder.path(), 1);
  ASSERT_EQ(want.size(), 20u);
  for (const int ranks : {2, 3, 4}) {
    const CommandResult r = run_mpi(ranks, golden_args(folder.path(), ranks));
    ASSERT_EQ(r.exit_code, 0) << r.err;
    expect_same(want, losses(folder.path(), ranks), 20, ranks);
  }
}

TEST(Sharding, RecallRunAgreesForTheFirstThreeSteps) {
  TempFolder folder;
  const auto args = [&](int ranks) {
    return Args{"train",
                HEDDLE_SOURCE_DIR "/configs/runs/recall_cpu.yaml",
                "train.num_iterations=3",
                "train.sample_tokens=0",
                "checkpoint.at_end=false",
                "train.eval_tokens=256",
                "log.dir=" + folder.path(),
                "log.name=ranks" + std::to_string(ranks)};
  };
  const CommandResult alone = run_heddle(args(1));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  for (const int ranks : {2, 3, 4}) {
    const CommandResult r = run_mpi(ranks, args(ranks));
    ASSERT_EQ(r.exit_code, 0) << r.err;
    expect_same(losses(folder.path(), 1), losses(folder.path(), ranks), 3, ranks);
  }
}

TEST(Sharding, MicroBatchSizeDoesNotMatter) {
  TempFolder folder;
  ASSERT_EQ(run_heddle(golden_args(folder.path(), 1)).exit_code, 0);
  Args args = golden_args(folder.path(), 5);
  args.push_back("train.device_batch_size=3");  // 8 sequences as 3 + 3 + 2
  ASSERT_EQ(run_heddle(args).exit_code, 0);
  expect_same(losses(folder.path(), 1), losses(folder.path(), 5), 20, 1);
}

TEST(Sharding, WorldSizeWithoutCommunicatorIsRefused) {
  TempFolder folder;
  Args args = golden_args(folder.path(), 1);
  args.push_back("dist.backend=self");
  const CommandResult r = run_heddle(args, {{"RANK", "1"},
                                            {"WORLD_SIZE", "2"},
                                            {"LOCAL_RANK", "1"},
                                            {"LOCAL_WORLD_SIZE", "2"},
                                            {"MASTER_ADDR", "127.0.0.1"},
                                            {"MASTER_PORT", "29500"}});
  EXPECT_EQ(r.exit_code, 6) << r.err;
  EXPECT_NE(r.err.find("WORLD_SIZE"), std::string::npos) << r.err;
}

TEST(Sharding, RanksWithDifferentConfigurationsAreRefused) {
  TempFolder folder;
  const auto rank = [&](const char* lr) {
    return Args{"-n",
                "1",
                heddle_path(),
                "train",
                HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
                std::string("optim.matrix_lr=") + lr,
                "log.dir=" + folder.path()};
  };
  Args argv{"mpirun", "--oversubscribe", "--bind-to", "none"};
  for (const std::string& a : rank("0.02")) argv.push_back(a);
  argv.push_back(":");
  for (const std::string& a : rank("0.03")) argv.push_back(a);
  const CommandResult r =
      run_command(argv, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  EXPECT_EQ(r.exit_code, 6) << r.err;
  EXPECT_NE(r.err.find("ranks disagree on version and configuration"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace heddle::test
