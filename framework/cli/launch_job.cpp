#include "framework/cli/launch_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio.hpp>
#include <boost/process/args.hpp>
#include <boost/process/async_pipe.hpp>
#include <boost/process/child.hpp>
#include <boost/process/env.hpp>
#include <boost/process/exe.hpp>
#include <boost/process/extend.hpp>
#include <boost/process/io.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "framework/core/error.h"

namespace heddle {
namespace {

namespace asio = boost::asio;
namespace bp = boost::process;
using boost::system::error_code;

constexpr int kSignalDeath = static_cast<int>(ExitCode::kCommunication);
constexpr auto kTermToKill = std::chrono::seconds(3);
constexpr auto kDrain = std::chrono::milliseconds(500);

// What other launchers tell their processes, and what would make a rank of ours take itself for one
// of theirs.
constexpr const char* kForeignPrefixes[] = {"OMPI_COMM_WORLD_", "PMIX_",      "PMI_",  "MPI_LOCAL",
                                            "TORCHELASTIC_",    "SLURM_STEP", "GROUP_"};
constexpr const char* kForeignNames[] = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"};

void say(const std::string& text) {
  const std::string line = "heddle launch: " + text + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

std::string random_hex(int words) {
  std::random_device device;
  std::string text;
  for (int i = 0; i < words; ++i) text += fmt::format("{:08x}", device());
  return text;
}

// Keeps a port for rank 0: bound, not listening, so that no other process is given it, while rank
// 0, which sets SO_REUSEADDR as well, can bind it and listen.
class ReservedPort {
 public:
  explicit ReservedPort(int wanted) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(wanted));
    socklen_t size = sizeof address;
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      const int error = errno;
      ::close(fd_);
      throw comm_error(
          fmt::format("port {} of 127.0.0.1 for rank 0: {}", wanted, std::strerror(error)),
          "leave --port out, which takes a free one, or name another");
    }
    port_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { ::close(fd_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

// In the child, between fork and exec.
void bind_life_to(pid_t parent) {
  ::setpgid(0, 0);  // a terminal's Ctrl-C reaches us alone and is passed on once
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kSignalDeath);  // it was gone before prctl
}

// Copies a stream to a descriptor of ours, line by line behind a prefix.
class Lines {
 public:
  Lines(asio::io_context& io, int rank, int to)
      : pipe(io), prefix_(fmt::format("[{}] ", rank)), to_(to) {
    // The other ranks must not hold it open.
    for (const int fd : {pipe.native_source(), pipe.native_sink()})
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }

  // Calls `closed` at the end of the stream.
  void start(std::function<void()> closed) {
    closed_ = std::move(closed);
    read();
  }

  bp::async_pipe pipe;

 private:
  void read() {
    pipe.async_read_some(asio::buffer(chunk_), [this](error_code error, size_t n) {
      text_.append(chunk_, n);
      flush(static_cast<bool>(error));
      if (error) {
        closed_();
      } else {
        read();
      }
    });
  }

  void flush(bool all) {
    std::string out;
    size_t begin = 0;
    for (size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      out += prefix_;
      out.append(text_, begin, end + 1 - begin);
    }
    text_.erase(0, begin);
    if (all && !text_.empty()) out += prefix_ + std::exchange(text_, {}) + "\n";
    for (size_t done = 0; done < out.size();) {
      const ssize_t n = ::write(to_, out.data() + done, out.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
  }

  std::string prefix_, text_;
  int to_;
  std::function<void()> closed_;
  char chunk_[4096];
};

struct Rank {
  Rank(asio::io_context& io, int r)
      : rank(r), out(io, r, STDOUT_FILENO), err(io, r, STDERR_FILENO) {}
  int rank;
  pid_t pid = -1;
  std::optional<int> status;  // of waitpid, once it has ended
  Lines out, err;

  bool failed() const { return status && *status != 0; }
  int exit_code() const { return WIFEXITED(*status) ? WEXITSTATUS(*status) : kSignalDeath; }
  std::string describe() const {
    if (WIFEXITED(*status)) return fmt::format("rank {} ended with code {}", rank, exit_code());
    const int signal = WTERMSIG(*status);
    return fmt::format("rank {} was ended by signal {} ({})", rank, signal, strsignal(signal));
  }
};

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        port_(options.port),
        signals_(io_, SIGINT, SIGTERM, SIGUSR1),
        timer_(io_) {
    signals_.add(SIGHUP);
    signals_.add(SIGCHLD);
  }
  ~Job() { end_all(SIGKILL); }

  int run() {
    const JobIdentity identity{port_.port(), "launch-" + random_hex(2), random_hex(4)};
    for (int r = 0; r < options_.ranks; ++r) start(r, identity);
    await_signal();
    io_.run();
    return first_ == nullptr ? 0 : first_->exit_code();
  }

 private:
  void start(int r, const JobIdentity& identity) {
    auto rank = std::make_unique<Rank>(io_, r);
    bp::environment env;
    for (const auto& [name, value] :
         rank_environment(process_environment(), identity, r, options_.ranks)) {
      env[name] = value;
    }
    const std::vector<std::string> arguments(options_.command.begin() + 1, options_.command.end());
    const pid_t parent = ::getpid();
    std::error_code error;
    bp::child child(
        bp::exe = options_.command[0], bp::args = arguments, env,
        bp::std_in<bp::null, bp::std_out> rank->out.pipe, bp::std_err > rank->err.pipe,
        error,
        bp::extend::on_exec_setup = [parent](auto&) { bind_life_to(parent); });
    if (error) {
      throw environment_error(
          "launch", fmt::format("cannot start {}: {}", options_.command[0], error.message()),
          "put a heddle subcommand or the path of a program behind --");
    }
    rank->pid = child.id();
    child.detach();  // we wait for it ourselves
    for (Lines* lines : {&rank->out, &rank->err}) {
      ++open_streams_;
      lines->start([this] {
        --open_streams_;
        stop_when_drained();
      });
    }
    ranks_.push_back(std::move(rank));
    ++running_;
  }

  void await_signal() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      if (signal == SIGCHLD) {
        reap();
      } else {
        pass_on(signal == SIGHUP ? SIGTERM : signal);
      }
      if (running_ > 0) {
        await_signal();
      } else {
        finish();
      }
    });
  }

  void pass_on(int signal) {
    const bool again = signal == SIGINT && std::exchange(interrupted_, true);
    say(fmt::format("{} passed on to {} rank{}{}", strsignal(signal), running_,
                    running_ == 1 ? "" : "s",
                    signal == SIGINT && !again ? "; Ctrl-C again ends them at once" : ""));
    for (const auto& rank : ranks_) {
      if (!rank->status) ::kill(rank->pid, signal);
    }
    if (again) after(kTermToKill, [this] { end_all(SIGKILL); });
  }

  void reap() {
    const bool had_failure = first_ != nullptr;
    for (const auto& rank : ranks_) {
      if (rank->status) continue;
      siginfo_t info{};
      if (::waitid(P_PID, rank->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
        continue;
      }
      // What it has started and left behind. Its number is not reused before it is waited for.
      ::kill(-rank->pid, SIGKILL);
      int status = 0;
      ::waitpid(rank->pid, &status, 0);
      rank->status = status;
      --running_;
      if (!rank->failed()) continue;
      if (had_failure) {
        say(rank->describe());
      } else {
        // Of several that ended together, one that only followed another's failure says so by
        // code 6.
        const bool better = first_ == nullptr ||
                            (first_->exit_code() == kSignalDeath && WIFEXITED(*first_->status) &&
                             !(WIFEXITED(status) && rank->exit_code() == kSignalDeath));
        if (better) first_ = rank.get();
      }
    }
    if (first_ == nullptr || had_failure) return;
    say(fmt::format(
        "{} first (pid {} of {} ranks){}", first_->describe(), first_->pid, options_.ranks,
        running_ > 0
            ? fmt::format("; {} still running, they have {:g} s", running_, options_.grace_seconds)
            : ""));
    if (running_ > 0) end_after_grace();
  }

  void end_after_grace() {
    const auto grace =
        std::chrono::milliseconds(static_cast<int64_t>(options_.grace_seconds * 1000));
    after(grace, [this] {
      say("SIGTERM to those still running");
      end_all(SIGTERM);
      end_all(SIGCONT);  // one that is stopped gets it too
      after(kTermToKill, [this] { end_all(SIGKILL); });
    });
  }

  void after(std::chrono::milliseconds time, std::function<void()> then) {
    timer_.expires_after(time);
    timer_.async_wait([then = std::move(then)](error_code error) {
      if (!error) then();
    });
  }

  void end_all(int signal) {
    for (const auto& rank : ranks_) {
      if (!rank->status) ::kill(-rank->pid, signal);
    }
  }

  // All have ended. Their last words may still be in the pipes; who holds one open does not stop
  // us.
  void finish() {
    signals_.cancel();
    after(kDrain, [this] { io_.stop(); });
    stop_when_drained();
  }

  void stop_when_drained() {
    if (running_ == 0 && open_streams_ == 0) io_.stop();
  }

  const JobOptions& options_;
  ReservedPort port_;
  asio::io_context io_;
  asio::signal_set signals_;
  asio::steady_timer timer_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  const Rank* first_ = nullptr;  // that failed
  int running_ = 0, open_streams_ = 0;
  bool interrupted_ = false;
};

}  // namespace

Environment rank_environment(Environment base, const JobIdentity& job, int rank, int ranks) {
  std::erase_if(base, [](const auto& entry) {
    for (const char* prefix : kForeignPrefixes) {
      if (entry.first.starts_with(prefix)) return true;
    }
    for (const char* name : kForeignNames) {
      if (entry.first == name) return true;
    }
    return false;
  });
  base["RANK"] = base["LOCAL_RANK"] = std::to_string(rank);
  base["WORLD_SIZE"] = base["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(job.port);
  base["HEDDLE_JOB_ID"] = job.job_id;
  base["HEDDLE_STORE_TOKEN"] = job.token;
  return base;
}

int run_job(const JobOptions& options) {
  return Job(options).run();
}

}  // namespace heddle
