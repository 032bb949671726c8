#include "plugins/conformance/faults.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "plugins/conformance/fp_mode.h"
#include "plugins/conformance/memory.h"

namespace heddle::conformance {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

struct Frame {
  sigjmp_buf jump;
  int signal = 0;
  void* address = nullptr;
  bool write = false;
  bool near_stack = false;  // the address lies where the stack pointer was
};
thread_local Frame* innermost = nullptr;

bool is_near_stack(const void* context, const void* address) {
#if defined(__x86_64__)
  constexpr int64_t kNear = 64 << 10;
  const auto* c = static_cast<const ucontext_t*>(context);
  const auto distance = reinterpret_cast<int64_t>(address) - c->uc_mcontext.gregs[REG_RSP];
  return distance > -kNear && distance < kNear;
#else
  (void)context, (void)address;
  return false;
#endif
}

bool was_write(const void* context) {
#if defined(__x86_64__)
  const auto* c = static_cast<const ucontext_t*>(context);
  return (c->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return false;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  Frame* frame = innermost;
  if (frame == nullptr) {  // not in a plugin: die of it
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  frame->signal = signal;
  frame->address = info->si_addr;
  frame->write = signal == SIGSEGV && was_write(context);
  frame->near_stack = signal == SIGSEGV && is_near_stack(context, info->si_addr);
  siglongjmp(frame->jump, 1);
}

std::string describe(const Frame& frame) {
  char text[160];
  const char* name = sigabbrev_np(frame.signal);
  if (frame.signal != SIGSEGV && frame.signal != SIGBUS) {
    std::snprintf(text, sizeof text, "SIG%s (%s)", name, sigdescr_np(frame.signal));
    return text;
  }
  const std::string where = guard_hit(frame.address);
  if (where.empty() && frame.near_stack) {
    return std::string("SIG") + name + ": the stack overflows (endless recursion or large locals)";
  }
  const char* verb = frame.write ? "writes" : "reads";
  if (!where.empty()) return std::string("SIG") + name + ": " + verb + " " + where;
  std::snprintf(text, sizeof text, "SIG%s: %s address %p, which is no buffer of the call", name,
                verb, frame.address);
  return text;
}

Fault describe_exception() {
  try {
    throw;
  } catch (const std::exception& e) {
    return {0, std::string("a C++ exception crosses the C boundary: ") + e.what()};
  } catch (...) {
    return {0, "a C++ exception crosses the C boundary"};
  }
}

}  // namespace

void install_fault_handlers() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (const int s : kSignals) ::sigaction(s, &action, nullptr);
  prepare_thread_for_faults();
}

namespace {

// A stack for the handler, since the fault may be that the thread's own is full. The one before it
// comes back at the thread's end: sanitizers unmap what they find there then.
class HandlerStack {
 public:
  HandlerStack() : memory_(std::make_unique<std::byte[]>(kBytes)) {
    stack_t stack{};
    stack.ss_sp = memory_.get();
    stack.ss_size = kBytes;
    ::sigaltstack(&stack, &before_);
  }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;
  ~HandlerStack() { ::sigaltstack(&before_, nullptr); }

 private:
  static constexpr size_t kBytes = 64 << 10;
  std::unique_ptr<std::byte[]> memory_;
  stack_t before_{};
};

}  // namespace

void prepare_thread_for_faults() {
  thread_local const HandlerStack stack;
}

std::optional<Fault> run_guarded(void (*f)(void*), void* arg) {
  Frame frame;
  Frame* const outer = innermost;
  const FpMode mode = FpMode::current();
  std::optional<Fault> fault;
  if (sigsetjmp(frame.jump, 1) == 0) {
    innermost = &frame;
    try {
      f(arg);
    } catch (...) {
      fault = describe_exception();
    }
    innermost = outer;
    return fault;
  }
  innermost = outer;
  mode.restore();
  return Fault{frame.signal, describe(frame)};
}

}  // namespace heddle::conformance
