// Runs repeat to the bit, and a run that is stopped and resumed is one that never stopped.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

using Args = std::vector<std::string>;

constexpr int kSteps = 24;

Args run_args(const std::string& out, const std::string& name, Args more = {}) {
  Args args{"train",
            HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml",
            "train.num_iterations=" + std::to_string(kSteps),
            "checkpoint.at_end=true",
            "log.dir=" + out,
            "log.name=" + name};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::string final_checkpoint(const std::string& out, const std::string& name) {
  return out + "/" + name + "/checkpoints/step-0000" + std::to_string(kSteps);
}

void expect_same_bits(const std::string& a, const std::string& b) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(a)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file = entry.path().filename();
    const std::string left = get_file(a + "/" + file), right = get_file(b + "/" + file);
    ASSERT_FALSE(left.empty()) << a << "/" << file;
    EXPECT_TRUE(left == right) << file << " differs between " << a << " and " << b;
    ++files;
  }
  EXPECT_GE(files, 2) << a;
}

// Waits until the run has done `steps` steps.
void wait_for_steps(const std::string& metrics, size_t steps) {
  for (int i = 0; i < 6000; ++i) {
    if (read_metric(metrics, "train/loss").size() >= steps) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << metrics << " never reached " << steps << " steps";
}

TEST(Resume, SameRunTwiceGivesTheSameBits) {
  TempFolder folder;
  for (const char* name : {"a", "b"}) {
    const CommandResult r = run_mpi(2, run_args(folder.path(), name));
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  expect_same_bits(final_checkpoint(folder.path(), "a"), final_checkpoint(folder.path(), "b"));
}

class StopAndResume : public testing::TestWithParam<int> {};

TEST_P(StopAndResume, ByAnySignalIsToTheBitARunThatNeverStopped) {
  TempFolder folder;
  ASSERT_EQ(run_heddle(run_args(folder.path(), "whole")).exit_code, 0);

  Args argv = run_args(folder.path(), "stopped");
  argv.insert(argv.begin(), heddle_path());
  BackgroundCommand run(argv, {});
  wait_for_steps(folder.path("stopped/metrics.jsonl"), 3);
  kill(run.pid(), GetParam());
  const CommandResult stopped = run.wait(60);
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  ASSERT_FALSE(std::filesystem::exists(final_checkpoint(folder.path(), "stopped")))
      << "the run ended before the signal came";

  const CommandResult resumed =
      run_heddle(run_args(folder.path(), "stopped", {"train.resume=auto"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_bits(final_checkpoint(folder.path(), "whole"),
                   final_checkpoint(folder.path(), "stopped"));
  EXPECT_EQ(read_metric(folder.path("whole/metrics.jsonl"), "train/loss"),
            read_metric(folder.path("stopped/metrics.jsonl"), "train/loss"));
}

INSTANTIATE_TEST_SUITE_P(Signals, StopAndResume, testing::Values(SIGINT, SIGTERM, SIGUSR1));

// One rank gets the signal; all save the same step and leave with 0.
TEST(Resume, SignalAtOneOfTwoRanksStopsBoth) {
  TempFolder folder;
  ASSERT_EQ(run_mpi(2, run_args(folder.path(), "whole")).exit_code, 0);
  {
    BackgroundCommand run(mpirun_argv(2, run_args(folder.path(), "stopped")),
                          {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
    wait_for_steps(folder.path("stopped/metrics.jsonl"), 3);
    kill(run.pid(), SIGUSR1);  // mpirun forwards it
    const CommandResult stopped = run.wait(60);
    EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  }
  const CommandResult resumed =
      run_mpi(2, run_args(folder.path(), "stopped", {"train.resume=auto"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_bits(final_checkpoint(folder.path(), "whole"),
                   final_checkpoint(folder.path(), "stopped"));
}

TEST(Resume, ARunIsNeverOverwritten) {
  TempFolder folder;
  const Args args = run_args(folder.path(), "run", {"train.num_iterations=1"});
  ASSERT_EQ(run_heddle(args).exit_code, 0);
  const std::string first = get_file(folder.path("run/metrics.jsonl"));
  ASSERT_EQ(run_heddle(args).exit_code, 0);
  EXPECT_EQ(get_file(folder.path("run/metrics.jsonl")), first);
  EXPECT_TRUE(std::filesystem::exists(folder.path("run-2/metrics.jsonl")));
}

TEST(Resume, AnotherModelIsRefusedByName) {
  TempFolder folder;
  ASSERT_EQ(run_heddle(run_args(folder.path(), "run", {"train.num_iterations=1"})).exit_code, 0);
  const CommandResult r = run_heddle(
      run_args(folder.path(), "run", {"train.resume=auto", "model.n_kv_head=4"}));
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_NE(r.err.find("n_kv_head: 2 in the checkpoint, 4 in the config"), std::string::npos)
      << r.err;
}

}  // namespace
}  // namespace heddle::test
