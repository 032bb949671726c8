#include "framework/train/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

uint64_t blocked(const std::filesystem::path& task) {
  std::ifstream in(task / "status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  }
  return 0;
}

uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

int wait_for_signal(const StopSignals& signals) {
  for (int i = 0; i < 500 && signals.received() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return signals.received();
}

// A handler's frame must never land on a stack that a generated kernel has moved. The kernel shows
// the waiting thread with the signals open for as long as it waits; it is the only such one.
TEST(StopSignals, AreBlockedInEveryThreadButTheOneThatWaits) {
  set_num_threads(3);
  StopSignals signals;
  parallel_for(3, 1, [](int64_t, int64_t) {});
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    int threads = 0, open = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      ++threads;
      if ((blocked(task.path()) & bit(signal)) == 0) ++open;
    }
    EXPECT_GE(threads, 2);
    EXPECT_LE(open, 1) << "signal " << signal;
  }
  EXPECT_NE(blocked("/proc/thread-self") & bit(SIGINT), 0u);
}

TEST(StopSignals, ArmedSignalIsARequest) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    StopSignals signals;
    signals.arm();
    EXPECT_EQ(signals.received(), 0);
    kill(getpid(), signal);
    EXPECT_EQ(wait_for_signal(signals), signal);
  }
}

using StopSignalsDeathTest = testing::Test;

TEST(StopSignalsDeathTest, SecondInterruptEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        StopSignals signals;
        signals.arm();
        kill(getpid(), SIGINT);
        wait_for_signal(signals);
        kill(getpid(), SIGINT);
        std::this_thread::sleep_for(std::chrono::seconds(10));
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignalsDeathTest, BeforeArmingASignalEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        StopSignals signals;
        kill(getpid(), SIGTERM);
        std::this_thread::sleep_for(std::chrono::seconds(10));
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace heddle
