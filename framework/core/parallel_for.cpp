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
thread_local bool t_inside = false;

// Sets the nesting mark for the length of a body.
struct Inside {
  Inside() { t_inside = true; }
  ~Inside() { t_inside = false; }
};

// run(worker) on `workers` threads at once.
template <class Run>
void fork_join(int workers, Run&& run) {
#ifdef _OPENMP
#pragma omp parallel num_threads(workers)
  {
    Inside mark;
    run(omp_get_thread_num());
  }
#else
  std::vector<std::thread> threads;
  for (int w = 1; w < workers; ++w) {
    threads.emplace_back([&run, w] {
      Inside mark;
      run(w);
    });
  }
  {
    Inside mark;
    run(0);
  }
  for (auto& t : threads) t.join();
#endif
}

}  // namespace

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

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
  if (pieces <= 1 || t_inside) {
    body(arg, 0, n, 0);
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
  if (workers <= 1 || t_inside) {
    body(arg, 0, n, 0);
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
