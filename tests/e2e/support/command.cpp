#include "tests/e2e/support/command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

std::string unique_name(const std::string& stem) {
  static std::atomic<int> counter{0};
  return fs::temp_directory_path() /
         ("heddle-" + stem + "-" + std::to_string(getpid()) + "-" + std::to_string(counter++));
}

std::vector<std::string> merged_environment(const Env& extra) {
  std::vector<std::string> merged;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    if (!extra.contains(entry.substr(0, entry.find('=')))) merged.push_back(entry);
  }
  for (const auto& [key, value] : extra) merged.push_back(key + "=" + value);
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

BackgroundCommand::BackgroundCommand(const std::vector<std::string>& argv, const Env& env)
    : out_file_(unique_name("out")), err_file_(unique_name("err")) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out_file_.c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err_file_.c_str(), flags, 0600);
  std::vector<std::string> args = argv;
  std::vector<std::string> variables = merged_environment(env);
  const int rc = posix_spawnp(&pid_, args[0].c_str(), &actions, nullptr, pointers(args).data(),
                              pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (rc != 0) throw std::runtime_error("cannot start " + argv[0]);
}

BackgroundCommand::~BackgroundCommand() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  fs::remove(out_file_);
  fs::remove(err_file_);
}

CommandResult BackgroundCommand::wait(int timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(timeout_s);
  CommandResult result;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      status = 124 << 8;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = get_file(out_file_);
  result.err = get_file(err_file_);
  return result;
}

CommandResult run_command(const std::vector<std::string>& argv, const Env& env, int timeout_s) {
  return BackgroundCommand(argv, env).wait(timeout_s);
}

std::string heddle_path() { return HEDDLE_BINARY_DIR "/bin/heddle"; }

CommandResult run_heddle(std::vector<std::string> args, const Env& env, int timeout_s) {
  args.insert(args.begin(), heddle_path());
  return run_command(args, env, timeout_s);
}

std::vector<std::string> mpirun_argv(int ranks, std::vector<std::string> args) {
  std::vector<std::string> argv{"mpirun",         "-n",        std::to_string(ranks),
                                "--oversubscribe", "--bind-to", "none",
                                heddle_path()};
  argv.insert(argv.end(), args.begin(), args.end());
  return argv;
}

CommandResult run_mpi(int ranks, std::vector<std::string> args, const Env& env, int timeout_s) {
  Env all = env;
  all.emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
  all.emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  return run_command(mpirun_argv(ranks, std::move(args)), all, timeout_s);
}

std::map<int64_t, double> read_metric(const std::string& file, const std::string& key) {
  std::map<int64_t, double> values;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    boost::system::error_code ec;  // the last line may still be in the making
    const auto object = boost::json::parse(line, ec);
    if (ec || !object.as_object().contains(key)) continue;
    values[object.at("step").to_number<int64_t>()] = object.at(key).to_number<double>();
  }
  return values;
}

}  // namespace heddle::test
