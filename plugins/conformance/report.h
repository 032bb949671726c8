// A report for people and for programs.
#pragma once

#include <string>

#include "plugins/conformance/result.h"

namespace heddle::conformance {

// One row: "CNT      keys counted exactly            pass     312 cases   0.12 s", followed by what
// was found, with the command that repeats it.
std::string text_row(const CheckReport& report, const RuleResult& rule);
// "38 passed, 0 failed, 2 skipped" and what was covered.
std::string closing_lines(const CheckReport& report);
// The whole.
std::string text_report(const CheckReport& report);
std::string json_report(const CheckReport& report);
// JUnit: one test case a rule.
std::string junit_report(const CheckReport& report);

// "heddle plugin check PATH --only CNT --seed 1 --case '...'".
std::string repeat_command(const CheckReport& report, const RuleResult& rule,
                           const Finding& finding);

}  // namespace heddle::conformance
