#include "framework/train/signals.h"

#include <csignal>
#include <ctime>

namespace heddle {
namespace {

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

// Ends the process the way the signal would have without us, so that callers see its number.
void die_of(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(signal);
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  done_ = true;
  thread_.join();
  const sigset_t set = stop_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void StopSignals::watch() {
  const sigset_t set = stop_set();
  const timespec patience{0, 100'000'000};
  while (!done_) {
    const int signal = sigtimedwait(&set, nullptr, &patience);
    if (signal <= 0) continue;
    if (!armed_ || (signal == SIGINT && received_ == SIGINT)) die_of(signal);
    received_ = signal;
  }
}

}  // namespace heddle
