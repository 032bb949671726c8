// What a rule found out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugins/conformance/case.h"

namespace heddle::conformance {

struct Finding {
  std::string symptom;          // what was seen: "out differs from the definition"
  std::optional<Case> problem;  // the smallest case that still shows it
  std::string difference;       // the first element that differs; may be empty
  std::string diagnosis;        // what a known mistake would look like; may be empty
};

enum class Status { kPassed, kFailed, kSkipped };

struct RuleResult {
  std::string id, name;
  Status status = Status::kSkipped;
  std::string skip_reason;
  std::vector<Finding> findings;
  std::vector<std::string> notes;
  std::array<int64_t, 4> executed{};  // cases that ran, by operation (0: none)
  int64_t refused = 0;                // cases that query() refused
  double seconds = 0.0;

  int64_t executed_cases() const { return executed[0] + executed[1] + executed[2] + executed[3]; }
};

struct CheckReport {
  std::string plugin, version, path, level;  // level: quick or full
  int64_t seed = 1;
  std::string where;  // options that name the device and the data type, " --device cuda"; or empty
  std::vector<RuleResult> rules;

  int64_t count(Status status) const;
  int64_t executed_cases() const;
  // Nothing failed and something ran.
  bool passed() const;
};

// A result as one line of text and back; how the process that ran a rule tells the one that asked.
std::string to_line(const RuleResult& result);
std::optional<RuleResult> parse_line(const std::string& line);

}  // namespace heddle::conformance
