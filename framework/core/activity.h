// What this process is doing right now, for the threads that watch over it and for the other ranks.
// Written by the compute thread (and, for collectives, by the thread that runs them), read by any
// thread at any time without a lock: a reader never waits for a writer that is stuck.
#pragma once

#include <cstdint>
#include <string>

namespace heddle::activity {

enum class Phase : int { kInit, kStep, kCheckpoint, kEvaluate, kSample, kFinish };

const char* phase_name(Phase phase);

struct Snapshot {
  Phase phase = Phase::kInit;
  int64_t step = 0;         // being worked on, counted from 1; 0 before the first
  double seconds = 0;       // since the phase began or last showed progress
  std::string collective;   // empty: in none
  int64_t collectives = 0;  // number of the one it is in or was in last, counted alike on all ranks
  double collective_seconds = 0;
};

Snapshot now();
// "step 12, in all_reduce #48 for 3.1 s", "step 12, checkpoint, computing for 0.4 s"
std::string describe(const Snapshot& snapshot);

// Steps may begin in any phase; the time in it starts anew.
void set_step(int64_t step);
// The phase goes on and is not stuck: its time starts anew. For long phases made of pieces.
void progress();

// In this phase until the end of the scope, then back in the one before; an exception that leaves the
// scope leaves the phase as it is, for those who ask where it happened. Not for two threads.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase before_;
  int exceptions_;
};

// Waiting for other ranks in a collective until the end of the scope. `name` is a literal; `number`
// counts collectives alike on all ranks. A scope inside another one changes nothing.
class CollectiveScope {
 public:
  CollectiveScope(const char* name, int64_t number);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  bool outermost_;
};

}  // namespace heddle::activity
