// Running one rule: its cases one after the other, the first failure of each operation made small
// and explained.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugins/conformance/call.h"
#include "plugins/conformance/compare.h"
#include "plugins/conformance/diagnosis.h"
#include "plugins/conformance/result.h"
#include "plugins/conformance/session.h"

namespace heddle::conformance {

struct Options {
  bool quick = false;
  int64_t seed = 1;
  uint32_t only_op = 0;      // 0: all
  std::optional<Case> only;  // this case alone
};

// What a case showed.
struct Judgement {
  enum Kind { kPassed, kRefused, kFailed } kind = kPassed;
  std::string refusal;
  Finding finding;
  bool known = false, searched = false;  // as in Diagnosis

  static Judgement passed() { return {}; }
  static Judgement refused(std::string why) { return {kRefused, std::move(why), {}, false, false}; }
  static Judgement failed(std::string symptom, std::string difference = {},
                          Diagnosis diagnosis = {}) {
    return {kFailed,
            {},
            {std::move(symptom), std::nullopt, std::move(difference), std::move(diagnosis.words)},
            diagnosis.known,
            diagnosis.searched};
  }
  // Of a call that did not come to the point of comparing numbers.
  static Judgement of(const CallResult& result) {
    return result.refusal.empty() ? failed(result.trouble) : refused(result.refusal);
  }
};

// explain: a failure is looked into; costs more.
using Judge = std::function<Judgement(Session&, const Case&, bool explain)>;

class Check {
 public:
  Check(Session& session, const Options& options, RuleResult& result)
      : session_(session), options_(options), result_(result) {}

  Session& session() { return session_; }
  bool quick() const { return options_.quick; }
  int64_t seed() const { return options_.seed; }
  bool wants(uint32_t op) const { return options_.only_op == 0 || options_.only_op == op; }

  // Judges cases until one of their operation fails. Cases take the seed of the options, and what
  // the plugin cannot do is replaced as `adapt` says.
  void each(const std::vector<Case>& cases, const Judge& judge, Adapt adapt = Adapt::kAll);

  // For rules that are not about a case.
  void expect(bool holds, const std::string& symptom, const std::string& diagnosis = {});
  void ran(uint32_t op = 0) { ++result_.executed[op]; }
  void note(const std::string& text);
  void skip(const std::string& why) { result_.skip_reason = why; }

 private:
  void judge_one(const Case& c, const Judge& judge);
  Finding explain(const Case& c, const Judge& judge, const Judgement& first);

  Session& session_;
  const Options& options_;
  RuleResult& result_;
  std::array<bool, 4> failed_{};  // by operation
};

// ---- judges that many rules share ------------------------------------------------------------

// Inputs of a case, with the definition's out and lse for BACKWARD.
Arrays inputs_of(const Case& c);
// One call against the fp64 definition under G32 and GLSE (or the gates of the case's dtype).
Judgement judge_numbers(Session& session, const Case& c, bool explain);
// One call against the closed form of the case's probe data.
Judgement judge_probe(Session& session, const Case& c, bool explain);

}  // namespace heddle::conformance
