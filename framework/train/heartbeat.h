// What the ranks tell each other about themselves while they run, and who concludes from it that
// one of them has failed. No thread, no clock and no network in here: see watchdog.h for those.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/activity.h"
#include "framework/train/failure.h"

namespace heddle {

struct Heartbeat {
  int64_t count = 0;  // of this rank's heartbeats: another one is a sign of life
  std::string host;
  activity::Snapshot now;
};
std::string heartbeat_to_text(const Heartbeat& beat);
// Nothing: it is none.
std::optional<Heartbeat> heartbeat_from_text(const std::string& text);

// How a rank has failed, as others see it.
enum class FailureKind {
  kGone,    // its process has ended
  kSilent,  // no sign of life: frozen, or cut off
  kStuck,   // alive, but over a deadline
  kError,   // says so itself
};
struct Suspicion {
  FailedRank failed;
  FailureKind kind = FailureKind::kError;
};
std::string suspicion_to_text(const Suspicion& suspicion);
std::optional<Suspicion> suspicion_from_text(const std::string& text);

// Deadline of one stretch of work in a phase. Steps and the way out have dist.timeout_s; what reads
// or writes files or runs the model over other data has a multiple of it.
double phase_limit(activity::Phase phase, double timeout);

// Over its own deadline while not waiting for others?
bool is_stuck(const activity::Snapshot& now, double timeout);

// Rank 0's view of the signs of life. Times in seconds of one steady clock.
class HeartbeatJudge {
 public:
  HeartbeatJudge(int world_size, double timeout, double now);

  void hear(int rank, const Heartbeat& beat, double now);
  // Said goodbye: never suspected again.
  void leave(int rank);
  // A rank that is silent for longer than the timeout; else all ranks waiting in collectives for
  // longer than that. Silence counts from the last sign of life; when the judge itself was not
  // called for a while (a frozen machine), everybody's silence starts anew.
  std::optional<Suspicion> judge(double now);

  const Heartbeat& last(int rank) const { return ranks_[rank].beat; }

 private:
  struct Rank {
    Heartbeat beat;
    double heard = 0;
    bool left = false;
  };
  std::optional<Suspicion> silent_rank(double now) const;
  std::optional<Suspicion> all_waiting() const;

  double timeout_;
  double judged_;
  std::vector<Rank> ranks_;
};

}  // namespace heddle
