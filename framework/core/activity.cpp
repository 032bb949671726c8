#include "framework/core/activity.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <exception>

namespace heddle::activity {
namespace {

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

double seconds_from(int64_t since) {
  return static_cast<double>(now_ns() - since) * 1e-9;
}

// Each value is whole by itself; a reader may see values of two neighbouring moments together,
// which is as good as having looked a moment earlier.
std::atomic<Phase> phase_now{Phase::kInit};
std::atomic<int64_t> step_now{0};
std::atomic<int64_t> phase_since{now_ns()};
std::atomic<const char*> collective_now{nullptr};
std::atomic<int64_t> collective_number{0};
std::atomic<int64_t> collective_since{0};

}  // namespace

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kInit:
      return "init";
    case Phase::kStep:
      return "step";
    case Phase::kCheckpoint:
      return "checkpoint";
    case Phase::kEvaluate:
      return "evaluation";
    case Phase::kSample:
      return "sample";
    case Phase::kFinish:
      return "finish";
  }
  return "unknown";
}

Snapshot now() {
  Snapshot s;
  s.phase = phase_now;
  s.step = step_now;
  s.seconds = seconds_from(phase_since);
  s.collectives = collective_number;
  if (const char* name = collective_now) {
    s.collective = name;
    s.collective_seconds = seconds_from(collective_since);
  }
  return s;
}

std::string describe(const Snapshot& s) {
  std::string text = s.step > 0 ? fmt::format("step {}, ", s.step) : std::string();
  if (s.phase != Phase::kStep) text += fmt::format("{}, ", phase_name(s.phase));
  if (!s.collective.empty()) {
    return text +
           fmt::format("in {} #{} for {:.1f} s", s.collective, s.collectives, s.collective_seconds);
  }
  return text + fmt::format("computing for {:.1f} s", s.seconds);
}

void set_step(int64_t step) {
  step_now = step;
  progress();
}

void progress() {
  phase_since = now_ns();
}

PhaseScope::PhaseScope(Phase phase) : before_(phase_now), exceptions_(std::uncaught_exceptions()) {
  progress();
  phase_now = phase;
}

PhaseScope::~PhaseScope() {
  if (std::uncaught_exceptions() > exceptions_) return;
  progress();
  phase_now = before_;
}

CollectiveScope::CollectiveScope(const char* name, int64_t number)
    : outermost_(collective_now == nullptr) {
  if (!outermost_) return;
  collective_number = number;
  collective_since = now_ns();
  collective_now = name;
}

CollectiveScope::~CollectiveScope() {
  if (!outermost_) return;
  collective_now = nullptr;
  progress();
}

}  // namespace heddle::activity
