#include "framework/train/fault.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/core/error.h"

namespace heddle {
namespace internal {
bool faults_on = false;
}  // namespace internal

namespace {

enum class Action { kKill, kSegv, kStop, kExit, kThrow, kOom, kNan, kHang, kSlow };

struct Fault {
  FaultPoint point;
  std::optional<int64_t> step;  // nothing: every one
  Action action;
  int64_t value = 0;  // exit code, milliseconds
  std::string text = {};
};

std::vector<Fault> armed;

constexpr std::array<std::pair<std::string_view, FaultPoint>, 8> kPoints = {
    {{"init", FaultPoint::kInit},
     {"step", FaultPoint::kStep},
     {"backward", FaultPoint::kBackward},
     {"reduce", FaultPoint::kReduce},
     {"update", FaultPoint::kUpdate},
     {"checkpoint", FaultPoint::kCheckpoint},
     {"eval", FaultPoint::kEval},
     {"end", FaultPoint::kEnd}}};

constexpr std::array<std::pair<std::string_view, Action>, 10> kActions = {
    {{"kill", Action::kKill},
     {"segv", Action::kSegv},
     {"stop", Action::kStop},
     {"exit0", Action::kExit},
     {"exit", Action::kExit},
     {"throw", Action::kThrow},
     {"oom", Action::kOom},
     {"nan", Action::kNan},
     {"hang", Action::kHang},
     {"slow", Action::kSlow}}};

[[noreturn]] void refuse(std::string_view item, const std::string& what) {
  throw Error(ExitCode::kUsage, "fault",
              fmt::format("HEDDLE_FAULT: '{}': {}, expected point:rank:step:action", item, what),
              "unset HEDDLE_FAULT, or see framework/train/fault.h");
}

template <class T, size_t N>
T look_up(const std::array<std::pair<std::string_view, T>, N>& table, std::string_view name,
          std::string_view item) {
  for (const auto& [key, value] : table) {
    if (key == name) return value;
  }
  refuse(item, fmt::format("unknown name '{}'", name));
}

std::optional<int64_t> number_or_all(std::string_view text, std::string_view item) {
  if (text == "*") return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(item, fmt::format("'{}' is no number", text));
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Asks for more than the address space may grow to: the allocator refuses by itself.
void run_out_of_memory() {
  rlimit before{};
  ::getrlimit(RLIMIT_AS, &before);
  rlimit tight = before;
  tight.rlim_cur = 1 << 20;
  ::setrlimit(RLIMIT_AS, &tight);
  try {
    const std::vector<char> block(int64_t{1} << 30);
    ::setrlimit(RLIMIT_AS, &before);
  } catch (const std::bad_alloc&) {
    ::setrlimit(RLIMIT_AS, &before);
    throw;
  }
}

// Tests measure from here.
void announce(const Fault& f) {
  std::fputs(fmt::format("heddle: HEDDLE_FAULT strikes: {}\n", f.text).c_str(), stderr);
  std::fflush(stderr);
}

bool act(const Fault& f) {
  switch (f.action) {
    case Action::kKill:
      ::raise(SIGKILL);
      break;
    case Action::kSegv:
      ::raise(SIGSEGV);
      break;
    case Action::kStop:
      ::raise(SIGSTOP);
      break;
    case Action::kExit:
      ::_exit(static_cast<int>(f.value));
    case Action::kThrow:
      throw std::runtime_error("an exception that HEDDLE_FAULT asked for");
    case Action::kOom:
      run_out_of_memory();
      break;
    case Action::kNan:
      return true;
    case Action::kHang:
      for (;;) ::pause();
    case Action::kSlow:
      std::this_thread::sleep_for(std::chrono::milliseconds(f.value));
      break;
  }
  return false;
}

}  // namespace

bool internal::fault_strikes(FaultPoint point, int64_t step) {
  bool poison = false;
  for (const Fault& f : armed) {
    if (f.point != point || f.step.value_or(step) != step) continue;
    if (f.step) announce(f);
    poison = act(f) || poison;
  }
  return poison;
}

void arm_faults(std::string_view text, int rank) {
  armed.clear();
  internal::faults_on = false;
  if (text.empty()) return;
  for (const std::string_view item : split(text, ',')) {
    const auto parts = split(item, ':');
    if (parts.size() != 4) refuse(item, fmt::format("{} parts", parts.size()));
    const auto action = split(parts[3], '=');
    Fault f{look_up(kPoints, parts[0], item), number_or_all(parts[2], item),
            look_up(kActions, action[0], item)};
    if (action.size() > 1) f.value = number_or_all(action[1], item).value_or(0);
    f.text = item;
    if (number_or_all(parts[1], item).value_or(rank) == rank) armed.push_back(f);
  }
  internal::faults_on = !armed.empty();
}

void arm_faults(int rank) {
  const char* text = std::getenv("HEDDLE_FAULT");
  arm_faults(text == nullptr ? std::string_view() : std::string_view(text), rank);
}

}  // namespace heddle
