// A thread that serves sockets beside the computation: all signals stay blocked in it, since the
// program awaits them elsewhere.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace heddle {

template <class F>
std::thread start_service_thread(F&& run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<F>(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace heddle
