// SIGINT, SIGTERM and SIGUSR1 mean: finish this step, save, exit 0. The handler only sets a flag;
// the ranks agree on it at the step boundary. A second SIGINT ends the process at once.
#pragma once

namespace heddle {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that asked this process to stop, or 0.
  int received() const;
};

}  // namespace heddle
