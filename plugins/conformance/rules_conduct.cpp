// What a call must not do to the process around it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "plugins/conformance/faults.h"
#include "plugins/conformance/grids.h"
#include "plugins/conformance/interpose.h"
#include "plugins/conformance/process_state.h"
#include "plugins/conformance/rules.h"

namespace heddle::conformance {
namespace {

std::vector<Case> conduct_cases() {
  std::vector<Case> cases;
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 33, 33, -1, {4, 2}, 16, 2));
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 300, 300, 40, {4, 2}, 64));
  cases.push_back(make_decode(1, 64, {64, 9}, -1, {4, 2}, 16));
  cases.push_back(make_decode(2, 600, {600}, -1, {4, 2}, 64));
  return cases;
}

// Counts what a call does, and what query() does for the same problem.
Counts count_call(Session& session, const Case& c, Judgement& judgement) {
  Counts counts;
  CallOptions options;
  options.before = begin_counting;
  options.after = [&counts] { counts = end_counting(); };
  const CallResult result = call_plugin(session, c, inputs_of(c), options);
  if (!result.ran()) judgement = Judgement::of(result);
  return counts;
}

Counts count_query(Session& session, const Case& c) {
  const heddle_attention_problem problem = session.problem(c);
  heddle_attention_verdict verdict{};
  verdict.struct_size = sizeof verdict;
  heddle_attention_ctx* ctx = session.context(kMostWorkers);
  begin_counting();
  run_guarded([&] { session.table().query(ctx, &problem, &verdict); });
  return end_counting();
}

Judgement judge_allocation(Session& session, const Case& c, bool) {
  Judgement judgement;
  const Counts call = count_call(session, c, judgement);
  if (judgement.kind != Judgement::kPassed) return judgement;
  const auto failed = [](const std::string& function, const Counts& counts) {
    return Judgement::failed(
        function + " allocates memory " + std::to_string(counts.allocations) +
            " times inside the call",
        "first: " + counts.first_allocation,
        {"ask for workspace in query() or allocate in create(); what a wrapped "
         "library cannot avoid is declared with HEDDLE_PROP_ALLOCATES",
         true});
  };
  if (call.allocations > 0) return failed(op_name(c.op), call);
  const Counts query = count_query(session, c);
  return query.allocations > 0 ? failed("query", query) : Judgement::passed();
}

Judgement judge_threads(Session& session, const Case& c, bool) {
  if (!session.target().is_cpu()) {  // the first launch may start threads of the driver
    const CallResult first = call_plugin(session, c, inputs_of(c));
    if (!first.ran()) return Judgement::of(first);
  }
  const int64_t before = ProcessState::current().threads;
  Judgement judgement;
  const Counts call = count_call(session, c, judgement);
  if (judgement.kind != Judgement::kPassed) return judgement;
  const int64_t left = ProcessState::current().threads - before;
  if (call.threads == 0 && left <= 0) return Judgement::passed();
  return Judgement::failed(
      std::string(op_name(c.op)) + " starts " + std::to_string(std::max(call.threads, left)) +
          " threads inside the call",
      left > 0 ? std::to_string(left) + " of them still run after it" : "",
      {"compute through host->parallel_for; what a wrapped library cannot avoid is declared with "
       "HEDDLE_PROP_OWN_THREADS",
       true});
}

// Standard output and error of this process, caught in memory.
class Capture {
 public:
  Capture() : file_(::memfd_create("output", MFD_CLOEXEC)), kept_{::dup(1), ::dup(2)} {}
  ~Capture() {
    for (const int fd : {file_, kept_[0], kept_[1]}) ::close(fd);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void begin() {
    flush();
    ::dup2(file_, 1);
    ::dup2(file_, 2);
  }
  void end() {
    flush();
    ::dup2(kept_[0], 1);
    ::dup2(kept_[1], 2);
  }
  std::string text() const {
    std::string bytes(200, '\0');
    const ssize_t n = ::pread(file_, bytes.data(), bytes.size(), 0);
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }

 private:
  static void flush() {
    std::fflush(stdout);
    std::fflush(stderr);
  }
  int file_;
  int kept_[2];
};

Judgement judge_output(Session& session, const Case& c, bool) {
  Capture capture;
  CallOptions options;
  options.before = [&] { capture.begin(); };
  options.after = [&] { capture.end(); };
  const CallResult result = call_plugin(session, c, inputs_of(c), options);
  if (!result.ran()) return Judgement::of(result);
  const std::string text = capture.text();
  if (text.empty()) return Judgement::passed();
  return Judgement::failed(std::string(op_name(c.op)) + " prints inside the call",
                           "\"" + text + "\"", {"use host->log", true});
}

Judgement judge_state(Session& session, const Case& c, bool) {
  ProcessState before, after;
  CallOptions options;
  options.before = [&] { before = ProcessState::current(); };
  options.after = [&] { after = ProcessState::current(); };
  const CallResult result = call_plugin(session, c, inputs_of(c), options);
  const std::string changed = difference(before, after);
  before.restore();
  if (!changed.empty()) return Judgement::failed(std::string(op_name(c.op)) + " " + changed);
  return result.ran() ? Judgement::passed() : Judgement::of(result);
}

// A device that the plugin does not serve.
std::string refuse_foreign_device(Session& session) {
  heddle_device device{};
  device.struct_size = sizeof device;
  device.type =
      session.table().device_type == HEDDLE_DEVICE_CPU ? HEDDLE_DEVICE_CUDA : HEDDLE_DEVICE_CPU;
  char text[65];
  std::memset(text, 'x', sizeof text);
  heddle_text err{text, 64, 0};
  heddle_attention_ctx* ctx = nullptr;
  uint32_t status = HEDDLE_OK;
  const Host::Entry entry;
  const auto fault = run_guarded([&] {
    status = session.table().create(session.host(kMostWorkers).services(), &device, &ctx, &err);
  });
  if (fault) return "create() for a device it does not serve fails with " + fault->text;
  if (status == HEDDLE_OK) return "create() accepts a device type that the plugin does not serve";
  if (text[64] != 'x') return "create() writes beyond the capacity of its message buffer";
  if (err.len == 0 || std::memchr(text, '\0', 64) == nullptr) {
    return "create() refuses a device without a NUL-terminated text";
  }
  return {};
}

}  // namespace

void check_allocation(Check& check) {
  if (!interpose()) return check.skip("allocations cannot be counted on this processor");
  if (check.session().has(HEDDLE_PROP_ALLOCATES)) {
    check.note("it declares HEDDLE_PROP_ALLOCATES: calls may allocate memory");
    return check.skip("declared: ALLOCATES");
  }
  if (!check.session().target().is_cpu()) {
    return check.skip("the runtime of a device allocates in its own calls");
  }
  check.each(conduct_cases(), judge_allocation);
}

void check_threads(Check& check) {
  if (check.session().has(HEDDLE_PROP_OWN_THREADS)) {
    check.note("it declares HEDDLE_PROP_OWN_THREADS: calls may compute on its own threads");
    return check.skip("declared: OWN_THREADS");
  }
  interpose();
  check.each(conduct_cases(), judge_threads);
}

void check_output(Check& check) {
  check.each(conduct_cases(), judge_output);
}

void check_process_state(Check& check) {
  check.each(conduct_cases(), judge_state);
}

void check_contexts(Check& check) {
  Session& session = check.session();
  const ProcessState before = ProcessState::current();
  for (int i = 0; i < (check.quick() ? 20 : 200); ++i) {
    heddle_attention_ctx* ctx = session.new_context(kMostWorkers);
    const auto fault = run_guarded([&] { session.table().destroy(ctx); });
    if (fault) return check.expect(false, "destroy() fails with " + fault->text);
    check.ran();
  }
  const ProcessState after = ProcessState::current();
  const std::string changed = difference(before, after);
  check.expect(changed.empty(), "create() or destroy() " + changed);
  check.expect(session.has(HEDDLE_PROP_OWN_THREADS) || after.threads <= before.threads,
               "create() leaves threads behind after destroy()");
  const std::string foreign = refuse_foreign_device(session);
  check.expect(foreign.empty(), foreign);
}

}  // namespace heddle::conformance
