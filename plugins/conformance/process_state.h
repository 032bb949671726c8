// What a call must leave as it found it, process-wide: compared before and after.
#pragma once

#include <signal.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/conformance/fp_mode.h"

namespace heddle::conformance {

struct ProcessState {
  FpMode fp_mode;
  std::string locale, directory;
  std::vector<std::string> environment;
  std::array<struct sigaction, 65> handlers{};  // by signal number
  uint64_t blocked_signals = 0;
  std::vector<std::string> descriptors;
  int64_t threads = 0;

  static ProcessState current();
  // Undoes what another state changed: all but descriptors and threads.
  void restore() const;
};

// "changes the locale from C to C.UTF-8", or empty when nothing changed. Threads are not compared.
std::string difference(const ProcessState& before, const ProcessState& after);

}  // namespace heddle::conformance
