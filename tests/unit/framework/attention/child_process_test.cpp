#include "framework/attention/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;

ChildResult shell(const std::string& script, std::chrono::milliseconds deadline = 10s) {
  return run_child({"/bin/sh", "-c", script}, deadline);
}

TEST(ChildProcess, CollectsReportOutputAndStatus) {
  const ChildResult r = shell("echo hello; echo oops >&2; echo fine >&$HEDDLE_PROBE_FD; exit 7");
  EXPECT_EQ(r.report, "fine\n");
  EXPECT_EQ(r.output, "hello\noops\n");
  EXPECT_EQ(r.exit_status, 7);
  EXPECT_EQ(r.signal, 0);
  EXPECT_FALSE(r.timed_out);
}

TEST(ChildProcess, TellsTheSignal) {
  const ChildResult r = shell("kill -SEGV $$");
  EXPECT_EQ(r.signal, SIGSEGV);
}

TEST(ChildProcess, EndsAGroupThatDoesNotAnswer) {
  const ChildResult r = shell("echo started >&3; sleep 100 & sleep 100", 1000ms);
  EXPECT_TRUE(r.timed_out);
  EXPECT_EQ(r.report, "started\n");
}

TEST(ChildProcess, DoesNotWaitForWhatTheChildLeftBehind) {
  const ChildResult r = shell("sleep 2 & echo done >&3");
  EXPECT_FALSE(r.timed_out);
  EXPECT_EQ(r.report, "done\n");
}

TEST(ChildProcess, KeepsTheEndOfMuchOutput) {
  const ChildResult r = shell("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done");
  EXPECT_LE(r.output.size(), 4096u);
  EXPECT_THAT(r.output, ::testing::EndsWith("line 2999\n"));
}

TEST(ChildProcess, GivesNoInputAndNoOtherDescriptors) {
  const ChildResult r = shell("cat; ls /proc/self/fd | wc -l >&3");
  EXPECT_EQ(r.exit_status, 0);
  EXPECT_LE(std::stoi(r.report), 5);  // 0, 1, 2, 3 and the folder that ls reads
}

TEST(ChildProcess, AMissingProgramIsAnEnvironmentError) {
  EXPECT_THAT(
      test::error_of([] { run_child({"/nonexistent/program"}, 1s); }, ExitCode::kEnvironment),
      ::testing::HasSubstr("cannot start /nonexistent/program: No such file"));
}

}  // namespace
}  // namespace heddle
