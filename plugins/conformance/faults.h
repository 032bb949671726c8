// Calling a plugin so that a crash in it ends the call and not the process: a signal handler jumps
// back to where the plugin was entered. What the plugin held (locks, half-written state) stays
// broken, which is fine for finding the smallest problem that crashes; whatever this cannot undo is
// contained by the process that the check runs in.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

namespace heddle::conformance {

struct Fault {
  int signal = 0;    // 0: a C++ exception left the plugin
  std::string text;  // "SIGSEGV: writes 0 bytes past the end of the workspace"
};

// Makes the handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT. Once, before threads exist.
void install_fault_handlers();
// Gives the calling thread a signal stack, so that it survives running out of stack.
void prepare_thread_for_faults();

// Runs f(); what ended it early, if anything did. Nests per thread, allocates only for a fault.
std::optional<Fault> run_guarded(void (*f)(void*), void* arg);

template <class F>
std::optional<Fault> run_guarded(F&& f) {
  using Body = std::remove_reference_t<F>;
  return run_guarded([](void* body) { (*static_cast<Body*>(body))(); }, &f);
}

}  // namespace heddle::conformance
