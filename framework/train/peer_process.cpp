#include "framework/train/peer_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "framework/comm/net.h"

namespace heddle {
namespace {

constexpr size_t kState = 0, kStartTime = 19, kExitCode = 49;  // after the name in /proc/PID/stat

// The fields behind "pid (name)"; the name may hold anything. Nothing: there is no such process.
std::optional<std::vector<std::string>> read_stat(int64_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  if (fields.size() <= kStartTime) return std::nullopt;
  return fields;
}

std::string read_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string how_it_ended(const std::vector<std::string>& fields) {
  if (fields.size() <= kExitCode) return {};
  const int status = std::atoi(fields[kExitCode].c_str());
  if (WIFSIGNALED(status)) {
    return fmt::format("ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  // 0 is also what the kernel tells those who may not know.
  return status == 0 ? std::string() : fmt::format("ended with code {}", WEXITSTATUS(status));
}

}  // namespace

ProcessId own_process() {
  std::error_code error;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  ProcessId id;
  id.place = fmt::format("{} {} {}", read_line("/proc/sys/kernel/random/boot_id"), host_name(),
                         space.string());
  id.pid = ::getpid();
  if (const auto fields = read_stat(id.pid)) id.start_ticks = std::stoll((*fields)[kStartTime]);
  return id;
}

ProcessView look_at(const ProcessId& process) {
  const auto fields = read_stat(process.pid);
  if (!fields || std::stoll((*fields)[kStartTime]) != process.start_ticks) return {};
  const std::string& state = (*fields)[kState];
  if (state == "Z" || state == "X") return {ProcessState::kEnded, how_it_ended(*fields)};
  if (state == "T" || state == "t") return {ProcessState::kStopped, {}};
  return {ProcessState::kRunning, {}};
}

bool end_process(const ProcessId& process) {
  if (look_at(process).state == ProcessState::kEnded) return false;
  return ::kill(static_cast<pid_t>(process.pid), SIGKILL) == 0;
}

}  // namespace heddle
