// heddle launch with stand-ins for ranks: small shell scripts that end as a rank may end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CommandResult launch(int ranks, const std::string& script, std::vector<std::string> options = {},
                     const Env& env = {}) {
  std::vector<std::string> args = {"launch", "-n", std::to_string(ranks)};
  args.insert(args.end(), options.begin(), options.end());
  args.insert(args.end(), {"--", "/bin/sh", "-c", script});
  return run_heddle(args, env, 60);
}

bool wait_for_text(const std::string& file, const std::string& text) {
  for (int i = 0; i < 1000; ++i) {
    if (get_file(file).find(text) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Launch, RanksHaveTheContractAndAPrefix) {
  const auto r = launch(
      3,
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; echo err >&2; "
      "printf 'no end of line'; test $MASTER_PORT -gt 0 && test -n \"$HEDDLE_STORE_TOKEN\" && "
      "test -n \"$HEDDLE_JOB_ID\"");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const std::string rank : {"0", "1", "2"}) {
    EXPECT_THAT(r.out, HasSubstr("[" + rank + "] " + rank + " 3 " + rank + " 3 127.0.0.1\n"));
    EXPECT_THAT(r.out, HasSubstr("[" + rank + "] no end of line\n"));
    EXPECT_THAT(r.err, HasSubstr("[" + rank + "] err\n"));
  }
}

TEST(Launch, LeavesNothingOfOuterLaunchersToItsRanks) {
  const auto r = launch(1, "env", {},
                        {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"PMI_RANK", "2"},
                         {"SLURM_STEP_ID", "0"},
                         {"TORCHELASTIC_RUN_ID", "x"},
                         {"HOME_OF_TEST", "kept"}});
  EXPECT_THAT(r.out, HasSubstr("HOME_OF_TEST=kept"));
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID", "TORCHELASTIC"}) {
    EXPECT_THAT(r.out, Not(HasSubstr(name)));
  }
}

TEST(Launch, EndsTheOthersAndReturnsTheCodeOfTheFirstFailure) {
  const auto r = launch(3, "test $RANK = 1 && exit 7; exec sleep 600", {"--grace", "0.1"});
  EXPECT_EQ(r.exit_code, 7);
  EXPECT_THAT(r.err, HasSubstr("rank 1 ended with code 7 first"));
  EXPECT_THAT(r.err, HasSubstr("rank 0 was ended by signal 15"));
}

TEST(Launch, ARankEndedByASignalIsACommunicationFailure) {
  const auto r = launch(2, "test $RANK = 0 && kill -9 $$; exit 0");
  EXPECT_EQ(r.exit_code, 6);
  EXPECT_THAT(r.err, HasSubstr("rank 0 was ended by signal 9"));
}

TEST(Launch, EndsRanksThatIgnoreSigtermOrAreStopped) {
  const auto r = launch(3,
                        "case $RANK in 0) exit 4;; 1) trap '' TERM; sleep 600 & wait;; "
                        "2) kill -STOP $$;; esac",
                        {"--grace", "0"});
  EXPECT_EQ(r.exit_code, 4);
}

TEST(Launch, PassesSignalsOnAndWaitsForTheSave) {
  TempFolder folder;
  const std::string ready = folder.path("ready");
  BackgroundCommand job({heddle_path(), "launch", "-n", "2", "--", "/bin/sh", "-c",
                         "trap 'sleep 0.3; echo saved; exit 0' USR1; echo $RANK >> " + ready +
                             "; while :; do sleep 0.05; done"},
                        {});
  ASSERT_TRUE(wait_for_text(ready, "0"));
  ASSERT_TRUE(wait_for_text(ready, "1"));
  kill(job.pid(), SIGUSR1);
  const auto r = job.wait(30);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("[0] saved"));
  EXPECT_THAT(r.out, HasSubstr("[1] saved"));
}

TEST(Launch, NoRankOutlivesTheLauncher) {
  TempFolder folder;
  const std::string pids = folder.path("pids");
  BackgroundCommand job({heddle_path(), "launch", "-n", "1", "--", "/bin/sh", "-c",
                         "echo $$ . > " + pids + "; exec sleep 600"},
                        {});
  ASSERT_TRUE(wait_for_text(pids, "."));
  const pid_t rank = static_cast<pid_t>(std::stol(get_file(pids)));
  kill(job.pid(), SIGKILL);
  job.wait(30);
  // It may stay a zombie for as long as nobody waits for orphans.
  bool gone = false;
  for (int i = 0; i < 1000 && !gone; ++i) {
    const std::string stat = get_file("/proc/" + std::to_string(rank) + "/stat");
    gone = stat.empty() || stat.find(") Z") != std::string::npos;
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
}

TEST(Launch, SaysWhatIsWrong) {
  EXPECT_EQ(run_heddle({"launch", "-n", "2"}).exit_code, 2);
  EXPECT_EQ(run_heddle({"launch", "-n", "0", "--", "train"}).exit_code, 2);
  const auto missing = run_heddle({"launch", "-n", "2", "--", "/no/such/program"});
  EXPECT_EQ(missing.exit_code, 4);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/program"));
  const auto config = run_heddle({"launch", "-n", "1", "--", "train", "no-such.yaml"});
  EXPECT_EQ(config.exit_code, 3);
  EXPECT_THAT(config.err, HasSubstr("[0] heddle: [config]"));
}

TEST(Launch, ShowNamesTheVariableOfEveryValue) {
  const auto r = run_heddle({"launch", "--show"}, {{"OMPI_COMM_WORLD_RANK", "1"},
                                                   {"OMPI_COMM_WORLD_SIZE", "3"},
                                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                   {"PMIX_NAMESPACE", "1"}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("openmpi"));
  EXPECT_THAT(r.out, HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE"));
}

}  // namespace
}  // namespace heddle::test
