// heddle::Error: everything that a user, a machine or a peer can cause. Only main() exits.
#pragma once

#include <stdexcept>
#include <string>

namespace heddle {

// Process exit codes, as documented in docs/errors.md.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,
  kConfig = 3,
  kEnvironment = 4,
  kPlugin = 5,
  kCommunication = 6,
  kNumerics = 7,
};

// what() is "[area] message. remedy". `message` says what failed, what was got and what was
// expected; `remedy` names the next thing to do (a key to set, a command to try) and may be empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string area, std::string message, std::string remedy = {});

  ExitCode code() const { return code_; }
  const std::string& area() const { return area_; }
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }

 private:
  ExitCode code_;
  std::string area_, message_, remedy_;
};

// One factory per exit code: `throw config_error("run.yaml:7: ...", "did you mean n_head?")`.
Error config_error(std::string message, std::string remedy = {});
Error environment_error(std::string area, std::string message, std::string remedy = {});
Error plugin_error(std::string message, std::string remedy = {});
Error comm_error(std::string message, std::string remedy = {});
Error numerics_error(std::string message, std::string remedy = {});

// For our own bugs: prints file, line, condition and message, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace heddle

#define HEDDLE_CHECK(condition, message)                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      ::heddle::check_failed(__FILE__, __LINE__, #condition, (message));     \
    }                                                                        \
  } while (false)
