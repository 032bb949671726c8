#include "plugins/conformance/check.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "plugins/conformance/shrink.h"

namespace heddle::conformance {
namespace {

// Questions that making a failure small may ask.
constexpr int kShrinkBudget = 250;
constexpr std::chrono::milliseconds kShrinkTime{10'000}, kQuickShrinkTime{1'500};

}  // namespace

void Check::each(const std::vector<Case>& cases, const Judge& judge, Adapt adapt) {
  if (options_.only) return judge_one(*options_.only, judge);
  for (Case c : cases) {
    if (session_.lost()) return;
    if (!wants(c.op) || failed_[c.op] || !session_.offers(c.op)) continue;
    c.seed += options_.seed - 1;
    judge_one(session_.adapted(c, adapt), judge);
  }
}

void Check::judge_one(const Case& c, const Judge& judge) {
  if (failed_[c.op]) return;
  const Judgement judgement = judge(session_, c, false);
  if (judgement.kind == Judgement::kRefused) {
    ++result_.refused;
    if (result_.skip_reason.empty()) result_.skip_reason = "refused: " + judgement.refusal;
    return;
  }
  ++result_.executed[c.op];
  if (judgement.kind == Judgement::kPassed) return;
  failed_[c.op] = true;
  result_.findings.push_back(explain(c, judge, judgement));
}

Finding Check::explain(const Case& c, const Judge& judge, const Judgement& first) {
  using Clock = std::chrono::steady_clock;
  const auto as_found = [&] {
    Finding finding = first.finding;
    finding.problem = c;
    return finding;
  };
  if (session_.lost()) return as_found();  // nothing can be tried any more
  const auto end = Clock::now() + (options_.quick ? kQuickShrinkTime : kShrinkTime);
  const auto fails = [&](const Case& candidate) {
    return Clock::now() < end && !session_.lost() &&
           judge(session_, candidate, false).kind == Judgement::kFailed;
  };
  const Case smallest = options_.only ? c : shrink(c, fails, kShrinkBudget);
  if (session_.lost()) return as_found();
  const Judgement again = judge(session_, smallest, true);
  Finding finding = first.finding;
  finding.problem = c;
  if (again.kind != Judgement::kFailed) {
    finding.diagnosis += finding.diagnosis.empty() ? "" : "; ";
    finding.diagnosis += "it does not happen every time: a race?";
    return finding;
  }
  // The larger problem distinguishes more mistakes, the smaller one is better to look at.
  const Judgement large = judge(session_, c, true);
  finding = again.finding;
  finding.problem = smallest;
  if (large.kind != Judgement::kFailed) return finding;
  if (large.known) {
    finding.diagnosis = large.finding.diagnosis;
  } else if (large.searched && !large.finding.diagnosis.empty() && !(smallest == c)) {
    // What only the small problem suggests is a coincidence.
    finding.diagnosis = "where it was found (q_len " + std::to_string(c.q_len) + ", k_len " +
                        std::to_string(c.k_len) + "): " + large.finding.diagnosis;
  }
  return finding;
}

void Check::expect(bool holds, const std::string& symptom, const std::string& diagnosis) {
  if (holds) return;
  for (const Finding& f : result_.findings) {
    if (f.symptom == symptom) return;
  }
  Finding finding;
  finding.symptom = symptom;
  finding.diagnosis = diagnosis;
  result_.findings.push_back(std::move(finding));
}

void Check::note(const std::string& text) {
  if (std::find(result_.notes.begin(), result_.notes.end(), text) == result_.notes.end()) {
    result_.notes.push_back(text);
  }
}

Arrays inputs_of(const Case& c) {
  Arrays inputs = make_inputs(c);
  if (c.op == HEDDLE_OP_BACKWARD) add_forward_results(c, inputs);
  return inputs;
}

namespace {

constexpr int64_t kFinitePoison = 0x3f;  // 0.747 in fp32

// The same call without a NaN: finite bytes in outputs and workspace, and, if wanted, in the tails
// of the cache.
CallResult call_without_nan(Session& session, const Case& c, Arrays& inputs, bool tails) {
  Case finite = c;
  finite.poison = kFinitePoison;
  Case other = c;
  other.seed += 5;
  if (tails && c.op == HEDDLE_OP_DECODE) {
    other.kv_len.assign(c.kv_len.size(), static_cast<int32_t>(c.k_len));
    const Arrays filler = make_inputs(other);
    for (size_t i = 0; i < inputs.k.size(); ++i) {
      if (std::isnan(inputs.k[i])) inputs.k[i] = filler.k[i];
      if (std::isnan(inputs.v[i])) inputs.v[i] = filler.v[i];
    }
  }
  return call_plugin(session, finite, inputs);
}

// A NaN, or an element that still holds the poison: where it comes from.
Diagnosis diagnose_nan(Session& session, const Case& c, const Arrays& inputs, const Exact& want,
                       const Arrays& got, const Difference& difference) {
  Arrays clean = inputs;
  const CallResult result = call_without_nan(session, c, clean, true);
  const double size = score_size(c, inputs);
  if (!result.ran()) return diagnose(c, inputs, got, want, difference);
  Case finite = c;
  finite.poison = kFinitePoison;
  auto again = compare_results(finite, result.got, want, size);
  if (again && again->unwritten) {
    return {"it still holds the bytes from before the call: not written, or 0 was added to it",
            true};
  }
  if (again && std::isnan(again->got)) return diagnose(finite, clean, result.got, want, *again);
  Arrays same = inputs;
  const CallResult tails = call_without_nan(session, c, same, false);
  const bool tail_matters =
      tails.ran() && compare_results(finite, tails.got, want, size) && c.op == HEDDLE_OP_DECODE;
  if (again && !tail_matters) {
    Diagnosis d = diagnose(finite, clean, result.got, want, *again);
    if (d.known) return d;
    return {"what outputs or workspace hold before the call reaches the result", true};
  }
  if (again) {
    const Diagnosis d = diagnose(finite, clean, result.got, want, *again);
    return {"keys at kv_len and behind are read" + (d.known ? ": " + d.words : ""), true};
  }
  if (tail_matters) {
    return {
        "cache rows at kv_len and behind are multiplied by 0 instead of left out: 0 * NaN is "
        "NaN",
        true};
  }
  return {"NaN that outputs or workspace hold before the call comes through: 0 * NaN is NaN", true};
}

Diagnosis look_into(Session& session, const Case& c, const Arrays& inputs, const Exact& want,
                    const Arrays& got, const Difference& difference) {
  if (c.workers > 1) {
    Case alone = c;
    alone.workers = 1;
    alone.order = Order::kInOrder;
    const CallResult result = call_plugin(session, alone, inputs);
    if (result.ran() && !compare_results(c, result.got, want, score_size(c, inputs))) {
      return {"right with one worker, wrong with " + std::to_string(c.workers) +
                  ": workers race, or share a buffer",
              true};
    }
  }
  if (difference.unwritten || std::isnan(difference.got)) {
    return diagnose_nan(session, c, inputs, want, got, difference);
  }
  return diagnose(c, inputs, got, want, difference);
}

}  // namespace

Judgement judge_numbers(Session& session, const Case& c, bool explain) {
  const Arrays inputs = inputs_of(c);
  const CallResult result = call_plugin(session, c, inputs);
  if (!result.ran()) return Judgement::of(result);
  const Exact want = exact_results(c, inputs);
  const auto difference = compare_results(c, result.got, want, score_size(c, inputs));
  if (!difference) return Judgement::passed();
  return Judgement::failed(
      std::string(op_name(c.op)) + ": " + difference->tensor + " differs from the definition",
      describe(*difference),
      explain ? look_into(session, c, inputs, want, result.got, *difference) : Diagnosis{});
}

Judgement judge_probe(Session& session, const Case& c, bool explain) {
  const Arrays inputs = inputs_of(c);
  const CallResult result = call_plugin(session, c, inputs);
  if (!result.ran()) return Judgement::of(result);
  const Exact want = probe_results(c);
  const auto difference = compare_probe(c, result.got, want);
  if (!difference) return Judgement::passed();
  std::string seen = read_probe(c, result.got, *difference);
  std::string symptom = std::string(op_name(c.op)) + ": " +
                        (seen.empty() ? difference->tensor + " is not the exact count" : seen);
  if (seen.find("hidden") != std::string::npos && c.window_left >= 0) {
    symptom += " (window_left is " + std::to_string(c.window_left) + ")";
  }
  return Judgement::failed(
      std::move(symptom), describe(*difference),
      explain ? look_into(session, c, inputs, want, result.got, *difference) : Diagnosis{});
}

}  // namespace heddle::conformance
