// SIGINT, SIGTERM and SIGUSR1 mean: finish this step, save, exit 0. The ranks agree on it at the
// step boundary. A second SIGINT ends the process at once.
//
// A thread waits for the signals; every other thread has them blocked and no handler ever runs:
// oneDNN's generated kernels point the stack at a small heap block while they compute, and a signal
// frame pushed there overwrites the heap (docs/adr/0003-signals-in-a-thread.md).
#pragma once

#include <atomic>
#include <thread>

namespace heddle {

class StopSignals {
 public:
  // Before any other thread is started: threads inherit what is blocked. Until arm() a signal ends
  // the process, as it would without this object.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From here on a signal is a request.
  void arm() { armed_ = true; }
  // The signal that asked this process to stop, or 0.
  int received() const { return received_; }

 private:
  void watch();

  std::atomic<bool> armed_{false}, done_{false};
  std::atomic<int> received_{0};
  std::thread thread_;
};

}  // namespace heddle
