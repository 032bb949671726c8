#include "plugins/conformance/process_state.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace heddle::conformance {
namespace {

std::vector<std::string> entries(const char* folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder);
  if (dir == nullptr) return names;
  const std::string own = std::to_string(::dirfd(dir));
  while (const dirent* e = ::readdir(dir)) {
    if (e->d_name[0] != '.' && own != e->d_name) names.emplace_back(e->d_name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

std::string join_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (const std::string& s : b) {
    if (std::find(a.begin(), a.end(), s) == a.end()) return s;
  }
  for (const std::string& s : a) {
    if (std::find(b.begin(), b.end(), s) == b.end()) return s;
  }
  return "their order";
}

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "%04x", value);
  return text;
}

}  // namespace

ProcessState ProcessState::current() {
  ProcessState s;
  s.fp_mode = FpMode::current();
  s.locale = std::setlocale(LC_ALL, nullptr);
  char directory[PATH_MAX];
  if (::getcwd(directory, sizeof directory) != nullptr) s.directory = directory;
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) s.environment.emplace_back(*e);
  for (int n = 1; n < static_cast<int>(s.handlers.size()); ++n) {
    ::sigaction(n, nullptr, &s.handlers[static_cast<size_t>(n)]);
  }
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  for (int n = 1; n < 64; ++n) {
    if (sigismember(&blocked, n) == 1) s.blocked_signals |= uint64_t{1} << n;
  }
  s.descriptors = entries("/proc/self/fd");
  s.threads = static_cast<int64_t>(entries("/proc/self/task").size());
  return s;
}

void ProcessState::restore() const {
  fp_mode.restore();
  std::setlocale(LC_ALL, locale.c_str());
  if (::chdir(directory.c_str()) != 0) return;
  ::clearenv();
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
    }
  }
  for (int n = 1; n < static_cast<int>(handlers.size()); ++n) {
    ::sigaction(n, &handlers[static_cast<size_t>(n)], nullptr);
  }
  sigset_t blocked;
  sigemptyset(&blocked);
  for (int n = 1; n < 64; ++n) {
    if (blocked_signals & (uint64_t{1} << n)) sigaddset(&blocked, n);
  }
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

std::string difference(const ProcessState& before, const ProcessState& after) {
  if (before.fp_mode.control != after.fp_mode.control) {
    return "changes the floating-point mode (MXCSR " + hex(before.fp_mode.control) + " -> " +
           hex(after.fp_mode.control) + ")";
  }
  if (before.fp_mode.rounding != after.fp_mode.rounding) return "changes the rounding mode";
  if (before.locale != after.locale) {
    return "changes the locale from " + before.locale + " to " + after.locale;
  }
  if (before.directory != after.directory) {
    return "changes the working directory from " + before.directory + " to " + after.directory;
  }
  if (before.environment != after.environment) {
    return "changes the environment: " + join_difference(before.environment, after.environment);
  }
  for (size_t n = 1; n < before.handlers.size(); ++n) {
    if (before.handlers[n].sa_handler == after.handlers[n].sa_handler) continue;
    const char* name = sigabbrev_np(static_cast<int>(n));
    return std::string("changes the handler of SIG") + (name ? name : std::to_string(n));
  }
  if (before.blocked_signals != after.blocked_signals) return "changes the blocked signals";
  if (before.descriptors != after.descriptors) {
    return "opens or closes a file: descriptor " +
           join_difference(before.descriptors, after.descriptors);
  }
  return {};
}

}  // namespace heddle::conformance
