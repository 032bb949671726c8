// Processes of other ranks on this host: are they there, and ending one that is frozen.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace heddle {

// A process, for as long as it lives: pid and start time together are not used twice. `place` says
// where the pid means something: boot, host name and pid namespace.
struct ProcessId {
  std::string place;
  int64_t pid = 0;
  int64_t start_ticks = 0;

  bool operator==(const ProcessId&) const = default;
};

ProcessId own_process();

enum class ProcessState { kRunning, kStopped, kEnded };

struct ProcessView {
  ProcessState state = ProcessState::kEnded;
  std::string how;  // kEnded: how it ended, where the kernel still tells
};

// Of a process in our own place.
ProcessView look_at(const ProcessId& process);
// SIGKILL, if it is still the same process. False: it was not.
bool end_process(const ProcessId& process);

}  // namespace heddle
