// What a call may read and write.
#include "plugins/conformance/grids.h"
#include "plugins/conformance/rules.h"

namespace heddle::conformance {
namespace {

// Small problems of all operations at the edges of tiles.
std::vector<Case> mixed_cases(bool quick) {
  std::vector<Case> cases;
  for (const int64_t n : quick ? std::vector<int64_t>{13, 1, 65}
                               : std::vector<int64_t>{13, 1, 2, 16, 31, 64, 65, 127, 130}) {
    for (const int64_t d : {7, 64}) {
      add_training(cases, make_case(HEDDLE_OP_FORWARD, n, n, n / 2, {4, 2}, d, 2));
      add_training(cases, make_case(HEDDLE_OP_FORWARD, n, n + 5, -1, {3, 1}, d));
      const auto len = static_cast<int32_t>(n);
      cases.push_back(make_decode(1, n, {len, 1}, -1, {4, 2}, d));
      cases.push_back(make_decode(std::min<int64_t>(n, 3), n + 4, {len}, 5, {3, 1}, d));
    }
  }
  for (Case& c : cases) c.workers = 2;
  return cases;
}

Judgement judge_reuse(Session& session, const Case& c, bool explain) {
  Case other = c;
  other.seed += 1000;
  std::vector<std::byte> workspace;
  CallOptions options;
  options.workspace = &workspace;
  const Arrays before = inputs_of(other);
  const CallResult first = call_plugin(session, other, before, options);
  if (!first.ran()) return Judgement::of(first);
  const Arrays inputs = inputs_of(c);
  const CallResult second = call_plugin(session, c, inputs, options);
  if (!second.ran()) return Judgement::of(second);
  const Exact want = exact_results(c, inputs);
  const auto difference = compare_results(c, second.got, want, score_size(c, inputs));
  if (!difference) return Judgement::passed();
  Diagnosis diagnosis;
  if (explain) {
    const Exact old = exact_results(other, before);
    diagnosis = compare_results(c, second.got, old, score_size(c, inputs))
                    ? diagnose(c, inputs, second.got, want, *difference)
                    : Diagnosis{
                          "these are the results of the call before: something is kept "
                          "between calls",
                          true};
  }
  return Judgement::failed(std::string(op_name(c.op)) + ": " + difference->tensor +
                               " is wrong in a second call that gets the workspace of the first",
                           describe(*difference), diagnosis);
}

// The workspace is exactly as large as promised in every call of the suite; this asks for less.
Judgement judge_workspace(Session& session, const Case& c, bool explain) {
  const heddle_attention_problem plain = session.problem(c);
  const Answer answer = session.query(plain);
  if (!answer.violation.empty()) return Judgement::failed(answer.violation);
  if (!answer.supported) return Judgement::refused(answer.refusal());
  const Arrays inputs = inputs_of(c);
  const Exact want = exact_results(c, inputs);
  const uint64_t size = answer.workspace_bytes;
  for (const uint64_t limit : {size, size - 1, size / 2, size / 8, uint64_t{1}}) {
    if (limit == 0 || limit > size) continue;
    CallOptions options;
    options.max_workspace = limit;
    const CallResult result = call_plugin(session, c, inputs, options);
    const std::string asked = " with max_workspace " + std::to_string(limit);
    if (!result.trouble.empty()) return Judgement::failed(result.trouble + asked);
    if (!result.refusal.empty()) {
      bool named = false;
      for (const Reason& r : result.answer.reasons) named |= r.code == HEDDLE_REASON_WORKSPACE;
      if (!named) {
        return Judgement::failed("query refuses" + asked + " without a reason of code WORKSPACE",
                                 result.refusal);
      }
      continue;
    }
    if (result.answer.workspace_bytes > limit) {
      return Judgement::failed("query asks for " + std::to_string(result.answer.workspace_bytes) +
                               " bytes of workspace" + asked);
    }
    if (const auto d = compare_results(c, result.got, want, score_size(c, inputs))) {
      return Judgement::failed(std::string(op_name(c.op)) + ": " + d->tensor + " is wrong" + asked,
                               describe(*d),
                               explain ? diagnose(c, inputs, result.got, want, *d) : Diagnosis{});
    }
  }
  return Judgement::passed();
}

}  // namespace

void check_guards(Check& check) {
  std::vector<Case> cases = mixed_cases(check.quick());
  const size_t plain = cases.size();
  for (size_t i = 0; i < plain; ++i) {
    cases.push_back(cases[i]);
    cases.back().edge = Edge::kStart;
  }
  check.each(cases, judge_numbers);
}

void check_layouts(Check& check) {
  std::vector<Case> cases;
  for (const Layout layout : {Layout::kPadded, Layout::kPacked, Layout::kHeadMajor}) {
    for (Case c : mixed_cases(check.quick())) {
      c.layout = layout;
      cases.push_back(c);
    }
  }
  check.each(cases, judge_numbers);
}

void check_poison(Check& check) {
  std::vector<Case> cases;
  for (const int64_t poison : {0x7f, 0x00, 0x3f, 0xff}) {
    for (Case c : mixed_cases(true)) {
      c.poison = poison;
      cases.push_back(c);
    }
  }
  check.each(cases, judge_numbers);
}

void check_reuse(Check& check) {
  check.each(mixed_cases(check.quick()), judge_reuse);
}

void check_workspace(Check& check) {
  std::vector<Case> cases = mixed_cases(check.quick());
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 200, 200, -1, {6, 2}, 64));
  check.each(cases, judge_workspace);
}

}  // namespace heddle::conformance
