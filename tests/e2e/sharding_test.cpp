// Sharding is invisible: what a run learns does not depend on how many ranks share its batch.
#include <gtest/gtest.h>

#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

using Args = std::vector<std::string>;

bool path_exists(const std::string& path) {
  return std::filesystem::exists(path);
}

// The golden model on recall stories: its parameters have no zeros, so rounding is not amplified.
Args golden_args(const std::string& out, int ranks) {
  return {"train", HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
          "train.init_from=" HEDDLE_SOURCE_DIR "/tests/golden/sssl_gqa.safetensors",
          "log.dir=" + out, "log.name=ranks" + std::to_string(ranks)};
}

std::map<int64_t, double> losses(const std::string& out, const std::string& name) {
  return read_metric(out + "/" + name + "/metrics.jsonl", "train/loss");
}

std::map<int64_t, double> losses(const std::string& out, int ranks) {
  return losses(out, "ranks" + std::to_string(ranks));
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

TEST(Sharding, TwentyStepsFromGoldenParametersAgreeForOneToFiveRanks) {
  TempFolder folder;
  const CommandResult alone = run_heddle(golden_args(folder.path(), 1));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto want = losses(folder.path(), 1);
  ASSERT_EQ(want.size(), 20u);
  for (const int ranks : {2, 3, 4, 5}) {
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

// A run of the golden model that saves step 6 of 6 (or what `more` says), on text: the recall
// stories end in an evaluation that takes longer than such a run.
Args short_args(const TempFolder& folder, const std::string& name, Args more = {}) {
  Args args = golden_args(folder.path(), 0);
  args.back() = "log.name=" + name;
  std::string text;
  for (unsigned word = 1; text.size() < 100000; word = word * 1664525u + 1013904223u) {
    text += std::to_string(word >> 20) + " ";
  }
  put_file(folder.path("text.txt"), text);
  args.insert(args.end(), {"train.num_iterations=6", "checkpoint.at_end=true", "data.kind=text",
                           "data.path=" + folder.path("text.txt"), "data.val_fraction=0",
                           "data.cache_dir=" + folder.path("cache")});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void expect_runs(int ranks, const Args& args) {
  const CommandResult r = ranks == 1 ? run_heddle(args) : run_mpi(ranks, args);
  ASSERT_EQ(r.exit_code, 0) << r.err;
}

// Tensors of two runs' checkpoints, however many files they are cut into.
void expect_same_tensors(const TempFolder& folder, const std::string& a, const std::string& b,
                         int step = 6) {
  const CommandResult r =
      run_command({"python3", HEDDLE_SOURCE_DIR "/tests/distributed/compare_runs.py", "bits",
                   folder.path(a), folder.path(b), std::to_string(step)});
  EXPECT_EQ(r.out, "0\n") << "tensors differ between " << a << " and " << b << "\n" << r.err;
}

TEST(Sharding, LevelsGiveTheSameBitsAndHandOverWhatTheFormulaSays) {
  TempFolder folder;
  for (const std::string level : {"none", "optimizer", "gradients"}) {
    const Args args = short_args(folder, level, {"dist.shard=" + level});
    expect_runs(3, args);
    if (level != "none") expect_same_tensors(folder, "none", level);

    Args dry = args;
    dry.push_back("--dry-run");
    const std::string text = run_mpi(3, dry).out;
    const size_t at = text.find(" bytes handed to other ranks");
    ASSERT_NE(at, std::string::npos) << text;
    const size_t begin = text.find_last_not_of("0123456789", at - 1) + 1;
    const double formula = std::stod(text.substr(begin, at - begin));
    EXPECT_GT(formula, 0.0);
    const auto counted = read_metric(folder.path(level + "/metrics.jsonl"), "train/comm_bytes");
    ASSERT_EQ(counted.size(), 6u);
    for (const auto& [step, bytes] : counted) EXPECT_EQ(bytes, formula) << level << " " << step;
  }
}

TEST(Sharding, LevelsAgreeWhenRanksHaveDifferentNumbersOfMicroSteps) {
  TempFolder folder;  // 8 sequences on 3 ranks: 3, 3 and 2 micro-steps
  for (const std::string level : {"none", "optimizer", "gradients"}) {
    expect_runs(3, short_args(folder, level, {"dist.shard=" + level, "train.device_batch_size=1"}));
  }
  expect_same_tensors(folder, "none", "optimizer");
  const auto none = read_metric(folder.path("none/metrics.jsonl"), "train/loss");
  for (const auto& [step, loss] : read_metric(folder.path("gradients/metrics.jsonl"), "train/loss"))
    EXPECT_NEAR(loss, none.at(step), 1e-6 * loss) << "step " << step;
}

TEST(Sharding, WhatThreeRanksSavedGoesOnWithAnyNumber) {
  TempFolder folder;
  expect_runs(3, short_args(folder, "three", {"checkpoint.every=3"}));
  const auto want = read_metric(folder.path("three/metrics.jsonl"), "train/loss");
  for (const int ranks : {1, 2, 4}) {
    const std::string name = "on" + std::to_string(ranks), loaded = name + "loaded";
    const std::string resume = "train.resume=" + folder.path("three/checkpoints/step-000003");
    expect_runs(ranks,
                short_args(folder, loaded, {resume, "train.init_from=", "train.num_iterations=3"}));
    expect_same_tensors(folder, "three", loaded, 3);
    expect_runs(ranks, short_args(folder, name, {resume, "train.init_from="}));
    const auto got = read_metric(folder.path(name + "/metrics.jsonl"), "train/loss");
    for (int64_t step = 4; step <= 6; ++step) {
      EXPECT_NEAR(got.at(step), want.at(step), 1e-5 * want.at(step)) << ranks << " ranks";
    }
  }
}

TEST(Sharding, ReproducibleRunsGiveTheSameBitsForAnyRanksMicroBatchAndThreads) {
  TempFolder folder;
  const std::string on = "train.reproducible=true";
  expect_runs(1, short_args(folder, "one", {on}));
  expect_runs(1, short_args(folder, "threads", {on, "train.threads=2", "dist.shard=none"}));
  expect_runs(2, short_args(folder, "two", {on, "train.device_batch_size=3"}));
  expect_runs(3, short_args(folder, "three", {on, "dist.shard=none"}));
  expect_runs(5, short_args(folder, "five", {on}));
  for (const char* name : {"threads", "two", "three", "five"}) {
    expect_same_tensors(folder, "one", name);
    EXPECT_EQ(read_metric(folder.path("one/metrics.jsonl"), "train/loss"),
              read_metric(folder.path(std::string(name) + "/metrics.jsonl"), "train/loss"));
  }
}

TEST(Sharding, FullDiskOnOneRankKeepsTheLastCheckpointAndTrainsOn) {
  TempFolder folder;
  Args argv{"mpirun", "--oversubscribe", "--bind-to", "none"};
  const Args args = short_args(folder, "run", {"checkpoint.every=2", "checkpoint.at_end=false"});
  for (const bool full : {false, true}) {
    if (full) argv.push_back(":");
    argv.insert(argv.end(), {"-n", "1"});
    if (full) {
      // Room for the first checkpoint's part of this rank, not for the second's.
      argv.insert(argv.end(), {"-x", "LD_PRELOAD=" HEDDLE_BINARY_DIR "/tests/libfail_shim.so", "-x",
                               "HEDDLE_SHIM_PREFIX=" + folder.path("run/checkpoints"), "-x",
                               "HEDDLE_SHIM_ERRNO=28", "-x", "HEDDLE_SHIM_BYTES=900000"});
    }
    argv.push_back(heddle_path());
    argv.insert(argv.end(), args.begin(), args.end());
  }
  const CommandResult r =
      run_command(argv, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const std::string all = r.out + r.err;
  EXPECT_NE(all.find("rank 1: "), std::string::npos) << all;
  EXPECT_NE(all.find("No space left on device"), std::string::npos) << all;
  EXPECT_NE(all.find("training goes on, the last good checkpoint is " +
                     folder.path("run/checkpoints/step-000002")),
            std::string::npos)
      << all;
  EXPECT_EQ(losses(folder.path(), "run").size(), 6u);
}

// A rank dies while the others write step 4: step 2 stands, and another number of ranks goes on.
TEST(Sharding, RankKilledWhileSavingLeavesThePreviousCheckpoint) {
  TempFolder folder;
  const Args args = short_args(folder, "run", {"train.resume=auto", "checkpoint.every=2"});
  const CommandResult killed = run_mpi(2, args, {{"HEDDLE_FAULT", "checkpoint:1:4:kill"}});
  EXPECT_NE(killed.exit_code, 0);
  EXPECT_FALSE(path_exists(folder.path("run/checkpoints/step-000004")));
  const CommandResult resumed = run_mpi(3, args);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE((resumed.out + resumed.err).find("step-000002 at step 2"), std::string::npos)
      << resumed.out << resumed.err;
  EXPECT_TRUE(path_exists(folder.path("run/checkpoints/step-000006/manifest.json")));
  EXPECT_FALSE(path_exists(folder.path("run/checkpoints/.tmp-step-000004")));
}

TEST(Sharding, NanOnOneRankEndsAllWithTheNumericsCode) {
  TempFolder folder;
  for (const std::string level : {"none", "optimizer", "gradients"}) {
    const Args args = short_args(folder, level, {"dist.shard=" + level});
    const CommandResult r = run_mpi(3, args, {{"HEDDLE_FAULT", "backward:1:3:nan"}});
    EXPECT_EQ(r.exit_code, 7) << r.err;
    EXPECT_EQ(losses(folder.path(), level).size(), 2u) << level;
  }
}

TEST(Sharding, SecondJobOnOneFolderIsRefused) {
  TempFolder folder;
  const Args args = short_args(folder, "run", {"train.resume=auto", "train.num_iterations=100000"});
  BackgroundCommand first(mpirun_argv(2, args), {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                 {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  for (int i = 0; i < 3000; ++i) {
    if (!losses(folder.path(), "run").empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const CommandResult second = run_mpi(2, args);
  EXPECT_EQ(second.exit_code, 4) << second.err;
  EXPECT_NE((second.out + second.err).find("pid"), std::string::npos) << second.err;
  kill(first.pid(), SIGUSR1);
  EXPECT_EQ(first.wait(60).exit_code, 0);
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
