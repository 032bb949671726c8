// Faults on demand, for tests: HEDDLE_FAULT=point:rank:step:action. Off, and one comparison a
// point, unless the environment asks. Several are separated by commas; `*` is every rank or step.
//
//   point   init | step | backward | reduce | update | checkpoint | eval | end
//   action  kill | segv | stop (SIGSTOP) | exit0 | exit=CODE | throw | oom | nan | hang | slow=MS
//
// HEDDLE_FAULT=backward:1:4:kill ends rank 1 by SIGKILL in the backward pass of step 4.
#pragma once

#include <cstdint>
#include <string_view>

namespace heddle {

enum class FaultPoint { kInit, kStep, kBackward, kReduce, kUpdate, kCheckpoint, kEval, kEnd };

namespace internal {
extern bool faults_on;
bool fault_strikes(FaultPoint point, int64_t step);
}  // namespace internal

// Reads HEDDLE_FAULT for this rank. Throws heddle::Error (usage of the variable is wrong: 2).
void arm_faults(int rank);
// The same from a text; empty: off.
void arm_faults(std::string_view text, int rank);

// Acts as asked. True: the caller puts a NaN into what it has just computed.
inline bool fault(FaultPoint point, int64_t step) {
  return internal::faults_on && internal::fault_strikes(point, step);
}

}  // namespace heddle
