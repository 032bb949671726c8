// Things that a call must not do, one per mutant.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tests/conformance/mutants/mutant_plugin.h"

namespace heddle::mutants {
namespace {

using M = Mutant;

void on_signal(int) {}

void* idle(void*) {
  for (;;) ::pause();
}

[[gnu::noinline]] int overflow_stack(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? frame[0] : overflow_stack(depth + 1) + frame[0];
}

void end_process() {
  if (is(M::kAborts)) std::abort();
  if (is(M::kExits)) std::exit(3);
  if (is(M::kStackOverflow)) overflow_stack(0);
  if (is(M::kThrows)) throw std::runtime_error("thrown on purpose");
  if (is(M::kHangs)) {
    for (;;) ::usleep(1000);
  }
}

}  // namespace

void misbehave(heddle_attention_ctx*, const heddle_attention_problem& p) {
  static void* volatile kept;
  if (is(M::kAllocates)) {
    kept = std::malloc(4096);
    std::free(kept);
  }
  if (is(M::kMaps)) {
    kept = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::munmap(kept, 4096);
  }
  if (is(M::kThread)) std::thread([] {}).join();
  if (is(M::kHiddenThread)) {
    static pthread_t thread;
    ::pthread_create(&thread, nullptr, idle, nullptr);
    ::pthread_detach(thread);
  }
  if (is(M::kPrints)) std::printf("attention of %lld tokens\n", static_cast<long long>(p.q_len));
  if (is(M::kLocale)) std::setlocale(LC_ALL, "C.UTF-8");
  if (is(M::kMxcsr)) _mm_setcsr(_mm_getcsr() | 0x8040u);
  if (is(M::kSignalHandler)) ::signal(SIGUSR1, on_signal);
  if (is(M::kEnvironment)) ::setenv("OMP_NUM_THREADS", "1", 1);
  if (is(M::kDirectory) && ::chdir("/tmp") != 0) std::abort();
  if (is(M::kOpensFile) && ::open("/dev/null", O_RDONLY) < 0) std::abort();
  end_process();
}

}  // namespace heddle::mutants
