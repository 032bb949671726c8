// The host that plugins meet in the suite: a heddle_host whose parallel_for really uses the
// workers it was asked to, hands pieces out in several orders, and notices misuse. Allocates
// nothing and creates no thread once its pool stands.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "plugins/abi/heddle_attention.h"
#include "plugins/conformance/case.h"

namespace heddle::conformance {

inline constexpr uint32_t kMostWorkers = 3;

// Threads that wait for a job; created once, never joined.
void start_host_pool();

class Host {
 public:
  // num_workers() says `workers`, in [1, kMostWorkers]. Lives as long as the process.
  explicit Host(uint32_t workers);

  const heddle_host* services() const { return &services_; }
  uint32_t workers() const { return services_workers_; }

  void set_order(Order order) { order_ = order; }
  // For several threads inside the plugin at once: every call runs its pieces on its own thread,
  // under a worker number that no other call has, and yields half way.
  void set_concurrent(bool concurrent) { concurrent_ = concurrent; }

  // Marks the calling thread as one that entered the plugin.
  class Entry {
   public:
    Entry();
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
  };

  // What went wrong in parallel_for and its bodies since the last call of this; empty: nothing.
  // Not while a call runs.
  std::string take_trouble();

 private:
  static uint32_t num_workers(void* user);
  static void log(void* user, uint32_t level, const char* text);
  static void parallel_for(void* user, int64_t n, int64_t grain, heddle_parallel_body body,
                           void* arg);
  struct Job;
  static void participate(void* job, uint32_t participant);

  void run_pool(Job& job);
  void run_alone(Job& job);
  void run_piece(const Job& job, int64_t index, uint32_t worker);
  uint32_t take_worker();
  void note(std::string text);

  heddle_host services_{};
  uint32_t services_workers_;
  std::atomic<Order> order_{Order::kInOrder};
  std::atomic<bool> concurrent_{false};
  std::atomic<uint32_t> busy_workers_{0};  // bit per worker number
  std::mutex trouble_mutex_;
  std::string trouble_;
};

}  // namespace heddle::conformance
