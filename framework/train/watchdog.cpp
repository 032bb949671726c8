#include "framework/train/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "framework/comm/nccl/nccl_communicator.h"
#include "framework/comm/net.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/log.h"

namespace heddle {
namespace {

constexpr double kLook = 0.2;       // seconds between two looks at processes of this host
constexpr double kConsequence = 3;  // a failed collective waits this long for its cause
constexpr double kSettle = 0.7;     // a verdict waits this long for this rank's own error
constexpr double kShort = 1.0;      // store calls on the way out
constexpr double kRecords = 1.0;    // the merging rank waits this long for the others' records
constexpr double kLinger = 2.0;     // rank 0 keeps the store up this long for the others
constexpr double kTurn = 0.15;      // seconds by which a rank lets the one before it merge

constexpr const char* kVerdict = "watch/verdict";
constexpr const char* kBeats = "watch/beat/";

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Looks every `interval` seconds until `done`, for `most` seconds at most.
template <class Done>
void await(double most, double interval, Done&& done) {
  for (double waited = 0; !done() && waited < most; waited += interval) sleep_seconds(interval);
}

std::string key(const char* prefix, int rank) {
  return fmt::format("{}{}", prefix, rank);
}

std::string random_id() {
  std::random_device device;
  return fmt::format("{}-{:08x}{:08x}", utc_now(), device(), device());
}

// mpirun, torchrun's agent and slurmstepd are parents of their ranks. A process that somebody
// started with the variables set by hand may well outlive its shell, unless that has bound it.
bool launcher_is_parent(const LaunchContext& launch) {
  if (launch.launcher == Launcher::kSingle) return false;
  if (launch.launcher != Launcher::kEnvironment) return true;
  int signal = 0;
  ::prctl(PR_GET_PDEATHSIG, &signal);
  return signal != 0;
}

void print_line(const std::string& text) {
  const std::string line = "heddle: " + text + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

Watchdog::Watchdog(double timeout, const LaunchContext& launch, StopSignals& signals)
    : timeout_(timeout),
      launch_(launch),
      signals_(signals),
      parent_(::getppid()),
      watches_parent_(launcher_is_parent(launch)) {
  if (launch.world_size == 1) return;  // nobody waits for us, and we wait for nobody
  // A launcher that is gone has closed our output: that must not end us before we have said so.
  ::signal(SIGPIPE, SIG_IGN);
  if (watches_parent_) ::prctl(PR_SET_PDEATHSIG, 0);  // this object does it, and writes a record
  threads_.emplace_back([this] { watch_process(); });
}

Watchdog::~Watchdog() {
  stop();
}

void Watchdog::stop() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Watchdog::join(std::shared_ptr<Rendezvous> rendezvous) {
  rendezvous_ = std::move(rendezvous);
  rendezvous_->watch();
  StoreClient& store = rendezvous_->store();
  store_ = &store;
  const Seconds patience(phase_limit(activity::Phase::kInit, timeout_));
  if (launch_.rank == 0) store.set("watch/attempt", random_id());
  const ProcessId self = own_process();
  store.set(key("watch/process/", launch_.rank),
            json::serialize(json::array{self.place, self.pid, self.start_ticks, host_name()}));
  attempt_ = store.wait("watch/attempt", patience);
  std::vector<std::string> keys;
  for (int r = 0; r < launch_.world_size; ++r) keys.push_back(key("watch/process/", r));
  for (const std::string& text : store.wait(keys, patience)) {
    const json::value value = json::parse(text);
    const json::array& a = value.as_array();
    processes_.push_back(
        {json::value_to<std::string>(a.at(0)), a.at(1).as_int64(), a.at(2).as_int64()});
    hosts_.push_back(json::value_to<std::string>(a.at(3)));
  }
  last_.resize(launch_.world_size);
  joined_ = true;
  threads_.emplace_back([this] { beat(); });
  threads_.emplace_back([this] { await_verdict(); });
}

void Watchdog::set_run_folder(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
}

std::string Watchdog::folder() const {
  const std::lock_guard lock(mutex_);
  return folder_;
}

bool Watchdog::pause(double seconds) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; });
  return !done_;
}

void Watchdog::leave() {
  if (!joined_) return;
  leaving_ = true;
  store_->set(key("watch/left/", launch_.rank), "1", Seconds(timeout_));
  // Nobody's process may be missed before everybody has stopped looking.
  std::vector<std::string> keys;
  for (int r = 0; r < launch_.world_size; ++r) keys.push_back(key("watch/left/", r));
  store_->wait(keys, Seconds(timeout_));
  joined_ = false;
  stop();
}

void Watchdog::watch_process() {
  do {
    if (leaving_) continue;
    if (watches_parent_ && ::getppid() != parent_) {
      Suspicion s;
      s.kind = FailureKind::kGone;
      s.failed.host = host_name();
      s.failed.why = fmt::format("the launcher ({}, pid {}) on host {} is gone",
                                 launcher_name(launch_.launcher), parent_, s.failed.host);
      conclude(s, {}, ExitCode::kCommunication);
    }
    const activity::Snapshot now = activity::now();
    if (is_stuck(now, timeout_)) {
      Suspicion s;
      s.kind = FailureKind::kStuck;
      s.failed.rank = launch_.rank;
      s.failed.why = fmt::format("it does not get on: over its deadline of {:g} s",
                                 phase_limit(now.phase, timeout_));
      conclude(s, {}, ExitCode::kCommunication);
    }
    if (joined_) look_at_peers();
  } while (pause(kLook));
}

void Watchdog::look_at_peers() {
  for (int r = 0; r < launch_.world_size; ++r) {
    if (r == launch_.rank || processes_[r].place != processes_[launch_.rank].place) continue;
    const ProcessView view = look_at(processes_[r]);
    if (view.state != ProcessState::kEnded) continue;
    try {
      if (store_->get(key("watch/left/", r), Seconds(timeout_))) continue;
    } catch (const StoreError&) {
      // Rank 0 has gone with its store, or because of it: this process has ended all the same.
    }
    if (leaving_) return;
    Suspicion s;
    s.kind = FailureKind::kGone;
    s.failed.rank = r;
    s.failed.why = view.how.empty() ? "its process is gone: killed, crashed, or left without a word"
                                    : "its process has " + view.how;
    conclude(s, {}, ExitCode::kCommunication);
  }
}

void Watchdog::beat() {
  const double interval = std::clamp(timeout_ / 20, 0.1, 1.0);
  HeartbeatJudge judge(launch_.world_size, timeout_, now_seconds());
  Heartbeat beat;
  beat.host = hosts_[launch_.rank];
  do {
    if (leaving_) return;
    try {
      ++beat.count;
      beat.now = activity::now();
      store_->set(key(kBeats, launch_.rank), heartbeat_to_text(beat), Seconds(timeout_));
      if (launch_.rank == 0) {
        judge_ranks(judge, beat.count);
      } else if (const auto text = store_->get(key(kBeats, 0), Seconds(timeout_))) {
        const std::lock_guard lock(mutex_);
        if (const auto zero = heartbeat_from_text(*text)) last_[0] = *zero;
      }
    } catch (const StoreError& e) {
      store_lost(e.message());
    }
  } while (pause(interval));
}

void Watchdog::judge_ranks(HeartbeatJudge& judge, int64_t round) {
  const double now = now_seconds();
  for (const auto& [name, text] : store_->scan(kBeats, Seconds(timeout_))) {
    const int rank = std::stoi(name.substr(std::char_traits<char>::length(kBeats)));
    const auto beat = heartbeat_from_text(text);
    if (!beat || rank >= launch_.world_size) continue;
    judge.hear(rank, *beat, now);
    const std::lock_guard lock(mutex_);
    last_[rank] = *beat;
  }
  const std::vector<MemberState> members = store_->members(Seconds(timeout_));
  for (const auto& [name, text] : store_->scan("watch/left/", Seconds(timeout_))) {
    judge.leave(std::stoi(name.substr(name.rfind('/') + 1)));
  }
  for (size_t r = 0; r < members.size(); ++r) {
    if (members[r] != MemberState::kLost || leaving_) continue;
    Suspicion s;
    s.kind = FailureKind::kGone;
    s.failed.rank = static_cast<int>(r);
    s.failed.why = "its process is gone: its connection to the store broke without a goodbye";
    if (!store_->get(key("watch/left/", static_cast<int>(r)))) {
      conclude(s, {}, ExitCode::kCommunication);
    }
  }
  if (round <= 1 || leaving_) return;
  if (const auto suspicion = judge.judge(now)) {
    conclude(*suspicion, {}, ExitCode::kCommunication);
  }
}

void Watchdog::await_verdict() {
  for (;;) {
    try {
      const std::string text = store_->wait(kVerdict, Seconds(kLook * 5));
      const auto verdict = suspicion_from_text(text);
      if (!verdict || leaving_) return;
      {
        const std::lock_guard lock(mutex_);
        verdict_ = verdict;
        signals_.arm();
      }
      // The compute thread may be about to say the same with its own words and exit code.
      await(kSettle, 0.05, [this] { return main_failed_.load(); });
      if (main_failed_) return;
      conclude(*verdict, {}, ExitCode::kCommunication);
    } catch (const StoreError& e) {
      if (leaving_) return;
      if (e.kind() == StoreError::Kind::kLost) store_lost(e.message());
    }
    const std::lock_guard lock(mutex_);
    if (done_) return;
  }
}

void Watchdog::store_lost(const std::string& what) {
  if (leaving_) return;
  // Rank 0 takes its store away a moment after the verdict; who has read that knows better.
  sleep_seconds(kLook);
  Suspicion s;
  s.kind = FailureKind::kSilent;
  s.failed.rank = 0;
  s.failed.why = "rank 0 is lost: " + what;
  conclude(s, {}, ExitCode::kCommunication);
}

void Watchdog::fail(const std::string& error, ExitCode exit_code, Cause cause) {
  main_failed_ = true;
  if (!joined_) return;
  signals_.arm();
  Suspicion s;
  s.kind = FailureKind::kError;
  s.failed.rank = launch_.rank;
  s.failed.why = error;
  if (cause == Cause::kCollective && activity::now().step > 0) {
    await(kConsequence, 0.05, [this] {
      const std::lock_guard lock(mutex_);
      return verdict_.has_value();
    });
  }
  conclude(s, error, exit_code);
}

void Watchdog::conclude(Suspicion suspicion, const std::string& own_error, ExitCode exit_code) {
  if (concluded_.exchange(true)) {
    // Another thread is ending this process already.
    for (;;) sleep_seconds(1);
  }
  signals_.arm();
  complete(&suspicion);
  bool agreed = false;
  const Suspicion verdict = joined_ ? agree(suspicion, &agreed) : suspicion;
  end(verdict, agreed, own_error, exit_code);
}

// What the last sign of life says about the suspect.
void Watchdog::complete(Suspicion* s) {
  FailedRank& failed = s->failed;
  if (failed.rank < 0) return;
  if (failed.rank == launch_.rank) {
    const activity::Snapshot now = activity::now();
    failed.host = host_name();
    failed.step = now.step;
    failed.activity = activity::describe(now);
    return;
  }
  // Ranks go through steps together, and we have come this far with it.
  const int64_t own_step = activity::now().step;
  if (!failed.activity.empty()) {
    failed.step = std::max(failed.step, own_step);
    return;
  }
  failed.host = hosts_[failed.rank];
  std::optional<Heartbeat> beat;
  try {
    if (failed.rank != 0) {
      if (const auto text = store_->get(key(kBeats, failed.rank), Seconds(kShort))) {
        beat = heartbeat_from_text(*text);
      }
    }
  } catch (const StoreError&) {
    // Then the last one that we have seen counts.
  }
  if (!beat) {
    const std::lock_guard lock(mutex_);
    beat = last_[failed.rank];
  }
  failed.step = std::max(beat->now.step, own_step);
  failed.activity = "last heard of in " + activity::describe(beat->now);
}

Suspicion Watchdog::agree(const Suspicion& suspicion, bool* agreed) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) {
      *agreed = true;
      return *verdict_;
    }
  }
  try {
    const std::string text = store_->compare_and_set(kVerdict, std::nullopt,
                                                     suspicion_to_text(suspicion), Seconds(kShort));
    *agreed = true;
    return suspicion_from_text(text).value_or(suspicion);
  } catch (const StoreError&) {
    return suspicion;
  }
}

void Watchdog::end(const Suspicion& verdict, bool agreed, const std::string& own_error,
                   ExitCode exit_code) {
  // Nothing may throw on the way out: whatever fails, the process ends.
  try {
    print_line(
        fmt::format("rank {}: ending with code {}: {}{}", launch_.rank, static_cast<int>(exit_code),
                    own_error.empty() ? "first failure: " + verdict.failed.text() : own_error,
                    own_error.empty() || verdict.failed.rank == launch_.rank
                        ? std::string()
                        : "; first failure: " + verdict.failed.text()));
    write_record(verdict, agreed, own_error, exit_code);
    write_summary(verdict);
    end_frozen(verdict);  // last: it makes the launcher end the others
  } catch (const std::exception& e) {
    print_line(std::string("while writing the failure record: ") + e.what());
  }
  if (launch_.rank == 0) linger();
  cut_device_links();
  ::_exit(static_cast<int>(exit_code));
}

void Watchdog::write_record(const Suspicion& verdict, bool agreed, const std::string& own_error,
                            ExitCode exit_code) {
  const std::string where = folder();
  if (where.empty()) return;
  const activity::Snapshot now = activity::now();
  FailureRecord record;
  record.rank = launch_.rank;
  record.world_size = launch_.world_size;
  record.host = host_name();
  record.pid = ::getpid();
  record.job_id = attempt_;
  record.step = now.step;
  record.activity = activity::describe(now);
  record.error = own_error;
  record.time = utc_now();
  record.exit_code = static_cast<int>(exit_code);
  record.first = verdict.failed;
  record.agreed = agreed;
  record.last_checkpoint = last_complete_checkpoint(where);
  write_failure_record(where, record);
}

// A frozen process can be ended by nobody but its launcher and us.
void Watchdog::end_frozen(const Suspicion& verdict) {
  const int r = verdict.failed.rank;
  if (verdict.kind != FailureKind::kSilent || r < 0 || r == launch_.rank || !joined_) return;
  if (processes_[r].place != processes_[launch_.rank].place) return;
  if (end_process(processes_[r])) {
    print_line(fmt::format("rank {}: ended the frozen rank {} (pid {}) of this host", launch_.rank,
                           r, processes_[r].pid));
  }
}

// One rank on each disk merges: the lowest that the verdict does not name, or the next one when
// that does not come. Creating failure.json decides.
void Watchdog::write_summary(const Suspicion& verdict) {
  const bool counts_itself = verdict.kind == FailureKind::kError;
  const int turn =
      launch_.rank -
      (!counts_itself && verdict.failed.rank >= 0 && verdict.failed.rank < launch_.rank ? 1 : 0);
  const std::string where = folder();
  if (where.empty()) {
    if (turn == 0) print_line("first failure: " + verdict.failed.text());
    return;
  }
  sleep_seconds(kTurn * std::min(turn, 8));
  const std::string file = where + "/failure.json";
  const int fd = ::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) {
    // Somebody else does it. Launchers end all ranks a moment after the first one has ended.
    await(kRecords + 0.5, 0.05, [&] { return !read_text_file(file).empty(); });
    return;
  }
  ::close(fd);
  const size_t expected = launch_.world_size - (!counts_itself && verdict.failed.rank >= 0 ? 1 : 0);
  std::vector<FailureRecord> records;
  await(kRecords, 0.1, [&] {
    records = read_failure_records(where, attempt_);
    return records.size() >= expected;
  });
  if (records.empty()) return;
  const FailureSummary summary = summarize_failures(std::move(records));
  write_failure_summary(where, summary);
  print_line(summary.text());
}

// Rank 0 has the store: the others read the verdict there.
void Watchdog::linger() noexcept {
  try {
    await(kLinger, 0.1, [this] {
      const auto members = store_->members(Seconds(kShort));
      return std::count(members.begin(), members.end(), MemberState::kJoined) <= 1;
    });
  } catch (const std::exception&) {
    // Gone already.
  }
}

}  // namespace heddle
