// Runs heddle as a user does: a process, its output, its exit status.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace heddle::test {

struct CommandResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out;     // stdout
  std::string err;     // stderr
};

using Env = std::map<std::string, std::string>;

// Runs argv[0] with the test's environment plus `env`; kills it after `timeout_s` (exit_code 124).
CommandResult run_command(const std::vector<std::string>& argv, const Env& env = {},
                          int timeout_s = 120);

// heddle of this build.
std::string heddle_path();
CommandResult run_heddle(std::vector<std::string> args, const Env& env = {}, int timeout_s = 120);
// The same on `ranks` processes under mpirun.
std::vector<std::string> mpirun_argv(int ranks, std::vector<std::string> args);
CommandResult run_mpi(int ranks, std::vector<std::string> args, const Env& env = {},
                      int timeout_s = 240);

// A process that goes on while the test watches it.
class BackgroundCommand {
 public:
  BackgroundCommand(const std::vector<std::string>& argv, const Env& env);
  ~BackgroundCommand();  // kills it when it still runs
  pid_t pid() const { return pid_; }
  CommandResult wait(int timeout_s);

 private:
  pid_t pid_ = -1;
  std::string out_file_, err_file_;
};

// Values of `key` by step, from a metrics.jsonl.
std::map<int64_t, double> read_metric(const std::string& file, const std::string& key);

}  // namespace heddle::test
