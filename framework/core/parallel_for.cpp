#include "framework/core/parallel_for.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#include <vector>
#endif

namespace heddle {
namespace {

int g_num_threads = 0;
// The worker that this thread is, -1 outside of a body. Nested calls run inline as that worker, so
// that scratch memory kept per worker is never shared.
thread_local int t_worker = -1;

struct Inside {
  explicit Inside(int worker) { t_worker = worker; }
  ~Inside() { t_worker = -1; }
};

int inline_worker() {
  return t_worker < 0 ? 0 : t_worker;
}

// run(worker) for each worker in [0, workers), on as many threads at once. The OpenMP runtime may
// give fewer threads (OMP_THREAD_LIMIT); each then stands for several workers.
template <class Run>
void fork_join(int workers, Run&& run) {
#ifdef _OPENMP
#pragma omp parallel num_threads(workers)
  for (int w = omp_get_thread_num(); w < workers; w += omp_get_num_threads()) {
    Inside mark(w);
    run(w);
  }
#else
  std::vector<std::thread> threads;
  for (int w = 1; w < workers; ++w) {
    threads.emplace_back([&run, w] {
      Inside mark(w);
      run(w);
    });
  }
  {
    Inside mark(0);
    run(0);
  }
  for (auto& t : threads) t.join();
#endif
}

}  // namespace

std::vector<int> processor_affinity() {
  // The mask grows until the kernel's fits.
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 4) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(bytes, set);
    std::vector<int> processors;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int i = 0; i < capacity; ++i) {
        if (CPU_ISSET_S(i, bytes, set)) processors.push_back(i);
      }
    }
    CPU_FREE(set);
    if (!processors.empty()) return processors;
  }
  return {0};
}

int available_processors() { return static_cast<int>(processor_affinity().size()); }

void set_num_threads(int n) {
  g_num_threads = n > 0 ? n : available_processors();
#ifdef _OPENMP
  omp_set_dynamic(0);
  omp_set_num_threads(g_num_threads);  // oneDNN follows it
#endif
}

int num_threads() {
  if (g_num_threads == 0) set_num_threads(0);
  return g_num_threads;
}

namespace internal {

void parallel_for(int64_t n, int64_t grain, RangeBody body, void* arg) {
  if (n <= 0) return;
  const int64_t pieces =
      std::min<int64_t>(num_threads(), std::max<int64_t>(1, n / std::max<int64_t>(grain, 1)));
  if (pieces <= 1 || t_worker >= 0) {
    body(arg, 0, n, inline_worker());
    return;
  }
  fork_join(static_cast<int>(pieces), [&](int worker) {
    const int64_t begin = n * worker / pieces, end = n * (worker + 1) / pieces;
    if (begin < end) body(arg, begin, end, worker);
  });
}

void parallel_tasks(int64_t n, RangeBody body, void* arg) {
  if (n <= 0) return;
  const int workers = static_cast<int>(std::min<int64_t>(num_threads(), n));
  if (workers <= 1 || t_worker >= 0) {
    body(arg, 0, n, inline_worker());
    return;
  }
  std::atomic<int64_t> next{0};
  fork_join(workers, [&](int worker) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < n;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(arg, i, i + 1, worker);
    }
  });
}

}  // namespace internal
}  // namespace heddle
