#include "plugins/conformance/host.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "plugins/conformance/faults.h"
#include "plugins/conformance/fp_mode.h"

namespace heddle::conformance {
namespace {

// Pieces of one parallel_for per worker, at most.
constexpr int64_t kPiecesPerWorker = 64;

thread_local int entered = 0;      // depth of Host::Entry on this thread
thread_local int own_worker = -1;  // the worker that this thread is inside a body

// One job at a time: participant 0 is the caller, 1.. are pool threads.
class Pool {
 public:
  using Work = void (*)(void* job, uint32_t participant);

  Pool() {
    for (uint32_t p = 1; p < kMostWorkers; ++p) std::thread([this, p] { serve(p); }).detach();
    while (arrived_.load() < kMostWorkers - 1) ::sched_yield();
  }

  // False when a job is running already.
  bool run(Work work, void* job, uint32_t participants) {
    bool idle = false;
    if (!busy_.compare_exchange_strong(idle, true)) return false;
    work_ = work;
    job_ = job;
    participants_ = participants;
    arrived_ = 0;
    left_ = participants;
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    take_part(0);
    while (left_.load(std::memory_order_acquire) > 0) ::sched_yield();
    busy_ = false;
    return true;
  }

 private:
  void serve(uint32_t participant) {
    prepare_thread_for_faults();
    arrived_.fetch_add(1);
    uint32_t seen = 0;
    for (;;) {
      generation_.wait(seen, std::memory_order_acquire);
      seen = generation_.load(std::memory_order_acquire);
      if (participant < participants_) take_part(participant);
    }
  }

  // All begin together, so that bodies really run at the same time.
  void take_part(uint32_t participant) {
    arrived_.fetch_add(1);
    while (arrived_.load() < participants_) ::sched_yield();
    work_(job_, participant);
    left_.fetch_sub(1, std::memory_order_release);
  }

  Work work_ = nullptr;
  void* job_ = nullptr;
  std::atomic<uint32_t> participants_{0};
  std::atomic<uint32_t> arrived_{0}, left_{0}, generation_{0};
  std::atomic<bool> busy_{false};
};

Pool& pool() {
  static auto& instance = *new Pool;
  return instance;
}

}  // namespace

struct Host::Job {
  Host* host;
  int64_t n;
  int64_t pieces;
  heddle_parallel_body body;
  void* arg;
  uint32_t participants;
};

void start_host_pool() {
  pool();
}

Host::Entry::Entry() {
  ++entered;
}
Host::Entry::~Entry() {
  --entered;
}

Host::Host(uint32_t workers) : services_workers_(std::clamp(workers, 1u, kMostWorkers)) {
  services_.struct_size = sizeof services_;
  services_.abi_minor = HEDDLE_ATTENTION_ABI_MINOR;
  services_.name = "heddle";
  services_.version = "conformance";
  services_.user = this;
  services_.log = log;
  services_.num_workers = num_workers;
  services_.parallel_for = parallel_for;
}

std::string Host::take_trouble() {
  const std::lock_guard lock(trouble_mutex_);
  return std::exchange(trouble_, {});
}

void Host::note(std::string text) {
  const std::lock_guard lock(trouble_mutex_);
  if (trouble_.empty()) trouble_ = std::move(text);
}

uint32_t Host::num_workers(void* user) {
  return static_cast<Host*>(user)->services_workers_;
}

void Host::log(void*, uint32_t, const char*) {}

void Host::parallel_for(void* user, int64_t n, int64_t grain, heddle_parallel_body body,
                        void* arg) {
  if (n <= 0) return;
  if (own_worker >= 0) return body(arg, 0, n, static_cast<uint32_t>(own_worker));
  Host& host = *static_cast<Host*>(user);
  Job job{&host, n, 1, body, arg, 1};
  if (host.order_ != Order::kOnePiece) {
    job.pieces = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1,
                                     kPiecesPerWorker * host.services_workers_);
  }
  if (entered == 0) {
    host.note("calls parallel_for from a thread that did not enter the plugin");
  } else if (!host.concurrent_) {
    return host.run_pool(job);
  }
  host.run_alone(job);
}

void Host::run_pool(Job& job) {
  job.participants = static_cast<uint32_t>(std::min<int64_t>(services_workers_, job.pieces));
  if (!pool().run(participate, &job, job.participants)) run_alone(job);
}

void Host::participate(void* arg, uint32_t participant) {
  const Job& job = *static_cast<Job*>(arg);
  // With reversed pieces the numbers of the workers are reversed too.
  const uint32_t worker = job.host->order_ == Order::kReversed
                              ? job.host->services_workers_ - 1 - participant
                              : participant;
  for (int64_t i = participant; i < job.pieces; i += job.participants) {
    job.host->run_piece(job, i, worker);
  }
}

void Host::run_alone(Job& job) {
  const uint32_t worker = take_worker();
  for (int64_t i = 0; i < job.pieces; ++i) {
    run_piece(job, i, worker);
    if (concurrent_ && i == job.pieces / 2) ::sched_yield();
  }
  busy_workers_.fetch_and(~(1u << worker));
}

uint32_t Host::take_worker() {
  for (;;) {
    for (uint32_t w = 0; w < services_workers_; ++w) {
      if ((busy_workers_.fetch_or(1u << w) & (1u << w)) == 0) return w;
    }
    ::sched_yield();
  }
}

void Host::run_piece(const Job& job, int64_t index, uint32_t worker) {
  int64_t piece = index;
  if (order_ == Order::kReversed) piece = job.pieces - 1 - index;
  if (order_ == Order::kShuffled) {
    const int64_t step = job.pieces % 7 != 0 ? 7 : job.pieces % 5 != 0 ? 5 : 1;
    piece = (index * step + job.pieces / 2) % job.pieces;
  }
  const FpMode mode = FpMode::current();
  own_worker = static_cast<int>(worker);
  const auto fault = run_guarded([&] {
    job.body(job.arg, job.n * piece / job.pieces, job.n * (piece + 1) / job.pieces, worker);
  });
  own_worker = -1;
  if (fault) note(fault->text);
  if (!(FpMode::current() == mode)) {
    mode.restore();
    note("changes the floating-point mode of a worker");
  }
}

}  // namespace heddle::conformance
