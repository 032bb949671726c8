// Counts the time that a thread spends in calls of a communicator; calls within calls once.
#pragma once

#include <chrono>

#include "framework/comm/communicator.h"

namespace heddle {

class CallTimer {
 public:
  explicit CallTimer(CommCounters* counters) : counters_(counters) {}
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;
  ~CallTimer() {
    counters_->seconds_inside +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

 private:
  CommCounters* counters_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace heddle
