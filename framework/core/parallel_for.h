// The one thread pool: OpenMP in ordinary builds (shared with oneDNN), std::thread under tsan.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle {

// Workers that parallel_for uses at most. 0 means all processors that this process may run on.
void set_num_threads(int n);
int num_threads();
// Processors in this process's affinity mask, ascending: what a launcher's binding leaves us.
std::vector<int> processor_affinity();
int available_processors();

namespace internal {
using RangeBody = void (*)(void* arg, int64_t begin, int64_t end, int worker);
void parallel_for(int64_t n, int64_t grain, RangeBody body, void* arg);
void parallel_tasks(int64_t n, RangeBody body, void* arg);
}  // namespace internal

// body(begin, end) or body(begin, end, worker) over [0, n) in contiguous static pieces of at least
// `grain`; piece w always goes to worker w < num_threads(). Blocks; nested calls run inline as the
// worker they are in. Exceptions must not leave the body.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  using B = std::remove_reference_t<Body>;
  internal::parallel_for(
      n, grain,
      [](void* arg, int64_t begin, int64_t end, int worker) {
        if constexpr (std::is_invocable_v<B&, int64_t, int64_t, int>) {
          (*static_cast<B*>(arg))(begin, end, worker);
        } else {
          (void)worker;
          (*static_cast<B*>(arg))(begin, end);
        }
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// body(task) or body(task, worker) for each task of [0, n), handed out one at a time in order: for
// tasks of unequal cost, heaviest first.
template <class Body>
void parallel_tasks(int64_t n, Body&& body) {
  using B = std::remove_reference_t<Body>;
  internal::parallel_tasks(
      n,
      [](void* arg, int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) {
          if constexpr (std::is_invocable_v<B&, int64_t, int>) {
            (*static_cast<B*>(arg))(i, worker);
          } else {
            (void)worker;
            (*static_cast<B*>(arg))(i);
          }
        }
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace heddle
