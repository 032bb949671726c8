#include "framework/train/signals.h"

#include <array>
#include <csignal>

namespace heddle {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1};
volatile std::sig_atomic_t g_received = 0;
std::array<struct sigaction, kSignals.size()> g_previous;

void on_signal(int signal) {
  if (g_received == SIGINT && signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  g_received = signal;
}

}  // namespace

StopSignals::StopSignals() {
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &g_previous[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &g_previous[i], nullptr);
}

int StopSignals::received() const { return g_received; }

}  // namespace heddle
