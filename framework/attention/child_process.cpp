#include "framework/attention/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "framework/core/error.h"

extern char** environ;

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kReportVariable = "HEDDLE_PROBE_FD";
constexpr int kReportFd = 3;        // in the child
constexpr int kLeastParentFd = 10;  // above what the child's descriptors are called
constexpr size_t kMaxReport = 1 << 20;
constexpr size_t kMaxOutput = 4096;
// How long a finished child's end can go unnoticed when something else holds its pipes open.
constexpr int kPollMs = 20;

[[noreturn]] void fail(const std::string& what, int error) {
  throw environment_error("plugin", fmt::format("cannot {}: {}", what, std::strerror(error)),
                          "check the limits on processes and open files (ulimit -a)");
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("make a pipe", errno);
    const Descriptor low_read(ends[0]), low_write(ends[1]);
    read = Descriptor(::fcntl(ends[0], F_DUPFD_CLOEXEC, kLeastParentFd));
    write = Descriptor(::fcntl(ends[1], F_DUPFD_CLOEXEC, kLeastParentFd));
    if (read.get() < 0 || write.get() < 0) fail("make a pipe", errno);
    ::fcntl(read.get(), F_SETFL, O_NONBLOCK);
  }
};

struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;

  SpawnSettings(int output, int report) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, report, kReportFd);
    posix_spawn_file_actions_addclosefrom_np(&actions, kReportFd + 1);
    posix_spawnattr_init(&attributes);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    // A group of its own, so that what the child starts can be ended with it.
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
};

pid_t spawn(const std::vector<std::string>& arguments, int output, int report) {
  const std::string mine = fmt::format("{}={}", kReportVariable, kReportFd);
  std::vector<char*> argv, envp;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  for (char** e = environ; *e != nullptr; ++e) {
    if (!std::string_view(*e).starts_with(std::string(kReportVariable) + "=")) envp.push_back(*e);
  }
  envp.push_back(const_cast<char*>(mine.c_str()));
  envp.push_back(nullptr);
  const SpawnSettings settings(output, report);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &settings.actions, &settings.attributes,
                                  argv.data(), envp.data());
  if (error != 0) fail("start " + arguments[0], error);
  return pid;
}

// Appends what can be read now; false at the end of the stream.
bool drain(int fd, std::string& text) {
  std::array<char, 4096> chunk;
  for (;;) {
    const ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    text.append(chunk.data(), static_cast<size_t>(n));
  }
}

// Collects both streams until the child has ended or the deadline has passed; true when ended.
bool collect(pid_t pid, Pipe& output, Pipe& report, Clock::time_point deadline, ChildResult& result,
             int& status) {
  std::array<pollfd, 2> streams{pollfd{output.read.get(), POLLIN, 0},
                                pollfd{report.read.get(), POLLIN, 0}};
  for (;;) {
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    const bool over = ended == pid || (ended < 0 && errno == ECHILD);
    if (streams[0].fd >= 0 && !drain(streams[0].fd, result.output)) streams[0].fd = -1;
    if (streams[1].fd >= 0 && !drain(streams[1].fd, result.report)) streams[1].fd = -1;
    if (result.output.size() > kMaxOutput) {
      result.output.erase(0, result.output.size() - kMaxOutput);
    }
    if (over) return true;
    if (Clock::now() >= deadline || result.report.size() > kMaxReport) return false;
    const bool closed = streams[0].fd < 0 && streams[1].fd < 0;
    ::poll(streams.data(), streams.size(), closed ? 1 : kPollMs);
  }
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments,
                      std::chrono::milliseconds deadline) {
  Pipe output, report;
  const Clock::time_point end = Clock::now() + deadline;
  const pid_t pid = spawn(arguments, output.write.get(), report.write.get());
  output.write.close();
  report.write.close();
  ChildResult result;
  int status = 0;
  if (!collect(pid, output, report, end, result, status)) {
    result.timed_out = true;
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return result;
  }
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  return result;
}

int child_report_descriptor() {
  const char* fd = std::getenv(kReportVariable);
  if (fd == nullptr) return STDOUT_FILENO;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return std::atoi(fd);
}

}  // namespace heddle
