#include "framework/train/peer_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace heddle {
namespace {

using ::testing::HasSubstr;

// A child that waits to be ended; reaped with the object.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
    id_ = own_process();
    id_.pid = pid_;
    id_.start_ticks = start_ticks();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const ProcessId& id() const { return id_; }
  void send(int signal, int wait_for) {
    ::kill(pid_, signal);
    siginfo_t info;
    ::waitid(P_PID, pid_, &info, wait_for | WNOWAIT);
  }

 private:
  int64_t start_ticks() const;
  pid_t pid_;
  ProcessId id_;
};

int64_t Child::start_ticks() const {
  FILE* f = std::fopen(("/proc/" + std::to_string(pid_) + "/stat").c_str(), "r");
  char line[1024] = {};
  const size_t n = std::fread(line, 1, sizeof line - 1, f);
  std::fclose(f);
  std::string text(line, n);
  text = text.substr(text.rfind(')') + 2);
  for (int i = 0; i < 19; ++i) text = text.substr(text.find(' ') + 1);
  return std::stoll(text);
}

TEST(PeerProcess, SeesRunningStoppedAndEnded) {
  Child child;
  EXPECT_EQ(look_at(child.id()).state, ProcessState::kRunning);
  child.send(SIGSTOP, WSTOPPED);
  EXPECT_EQ(look_at(child.id()).state, ProcessState::kStopped);
  child.send(SIGKILL, WEXITED);
  const ProcessView view = look_at(child.id());
  EXPECT_EQ(view.state, ProcessState::kEnded);
  EXPECT_THAT(view.how, HasSubstr("signal 9"));
}

TEST(PeerProcess, AnotherProcessWithItsPidIsNotIt) {
  Child child;
  ProcessId other = child.id();
  other.start_ticks -= 1;
  EXPECT_EQ(look_at(other).state, ProcessState::kEnded);
  EXPECT_FALSE(end_process(other));
  EXPECT_EQ(look_at(child.id()).state, ProcessState::kRunning);
}

TEST(PeerProcess, EndsAFrozenOne) {
  Child child;
  child.send(SIGSTOP, WSTOPPED);
  EXPECT_TRUE(end_process(child.id()));
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child.id().pid), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(look_at(child.id()).state, ProcessState::kEnded);
  EXPECT_FALSE(end_process(child.id()));
}

TEST(PeerProcess, OwnProcessIsRunning) {
  EXPECT_EQ(look_at(own_process()).state, ProcessState::kRunning);
  EXPECT_EQ(own_process(), own_process());
  EXPECT_FALSE(own_process().place.empty());
}

}  // namespace
}  // namespace heddle
