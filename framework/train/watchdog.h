// Ends this process when its job cannot go on, and says why.
//
// From its construction on: the launcher must live, and the compute thread must get on within the
// deadlines of phase_limit(). After join() also: every rank must give signs of life over the
// rendezvous store, and processes of this host are looked at directly. The first who sees a failure
// writes it into the store once, under one key; all ranks take that verdict. A store that is gone
// or does not answer for dist.timeout_s means that rank 0 is lost.
//
// Then every rank, each by itself: writes failure-rank-N.json into the run folder, ends a frozen
// rank of its own host, and ends with _exit: never by a call of the communication library. The
// lowest surviving rank merges the records into failure.json and prints one line.
//
// No thread of this class computes or calls MPI. Signals do not disturb the end of a failed job:
// StopSignals has them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/comm/launch_context.h"
#include "framework/comm/rendezvous.h"
#include "framework/train/heartbeat.h"
#include "framework/train/peer_process.h"
#include "framework/train/signals.h"

namespace heddle {

class Watchdog {
 public:
  // timeout: dist.timeout_s. Once a failure is known a signal no longer ends the process: the
  // record is written first. `signals` outlives this object.
  Watchdog(double timeout, const LaunchContext& launch, StopSignals& signals);
  // Watches nothing any more. For a process that has joined: after leave() or in fail().
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Collective over the store: tells the others about this process and waits for all of them.
  // Throws StoreError.
  void join(std::shared_ptr<Rendezvous> rendezvous);
  bool joined() const { return joined_; }
  // Where records go and checkpoints are; before that only text is printed.
  void set_run_folder(const std::string& folder);

  // This rank is done, and its process may end once all have said so: collective, after a barrier.
  // Nothing is watched any more; the store is not used again.
  void leave();

  // The compute thread has caught an exception that ends this rank with `exit_code`. Before join():
  // returns, the caller ends the job. After it: tells the others and does not return. A collective
  // that failed is mostly the consequence of what another rank has met: then that is waited for.
  enum class Cause { kOwn, kCollective };
  void fail(const std::string& error, ExitCode exit_code, Cause cause = Cause::kOwn);

 private:
  void watch_process();
  void beat();
  void await_verdict();
  void look_at_peers();
  void judge_ranks(HeartbeatJudge& judge, int64_t round);
  // Makes a suspicion the job's verdict, or takes the one that is there, and ends this process.
  // Only the first caller gets through; others wait for the end.
  void conclude(Suspicion suspicion, const std::string& own_error, ExitCode exit_code);
  Suspicion agree(const Suspicion& suspicion, bool* agreed);
  void complete(Suspicion* suspicion);
  void store_lost(const std::string& what);
  [[noreturn]] void end(const Suspicion& verdict, bool agreed, const std::string& own_error,
                        ExitCode exit_code);
  void write_record(const Suspicion& verdict, bool agreed, const std::string& own_error,
                    ExitCode exit_code);
  void write_summary(const Suspicion& verdict);
  void end_frozen(const Suspicion& verdict);
  void linger() noexcept;
  std::string folder() const;
  void stop();
  // False once this object is done with: for the threads' pauses.
  bool pause(double seconds);

  const double timeout_;
  const LaunchContext launch_;
  StopSignals& signals_;
  const pid_t parent_;
  bool watches_parent_ = false;

  std::shared_ptr<Rendezvous> rendezvous_;
  StoreClient* store_ = nullptr;  // its
  std::string attempt_;           // of this job: the same on all ranks, never used twice
  std::vector<ProcessId> processes_;
  std::vector<std::string> hosts_;
  std::atomic<bool> joined_{false}, leaving_{false}, concluded_{false}, main_failed_{false};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::string folder_;
  std::optional<Suspicion> verdict_;  // as read from the store
  std::vector<Heartbeat> last_;       // of rank 0 everywhere; of all ranks on rank 0

  std::vector<std::thread> threads_;
};

}  // namespace heddle
