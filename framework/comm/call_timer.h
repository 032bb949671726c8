// How communicators count time.
#pragma once

#include <chrono>

#include "framework/comm/communicator.h"

namespace heddle {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The time that a thread spends in calls of a communicator; calls within calls once.
class CallTimer {
 public:
  explicit CallTimer(CommCounters* counters) : counters_(counters) {}
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;
  ~CallTimer() { counters_->seconds_inside += seconds_since(started_); }

 private:
  CommCounters* counters_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace heddle
