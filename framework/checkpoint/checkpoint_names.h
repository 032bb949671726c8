// Names of folders inside checkpoints/, known to the writer, the reader and retention.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::internal {

inline constexpr std::string_view kStepPrefix = "step-";
// A folder that is being written or removed.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-step-";
// What stood at step-N while a new step-N takes its place.
inline constexpr std::string_view kReplacedSuffix = ".old";

// "step-000180".
std::string step_name(int64_t step);

struct StepName {
  int64_t step;
  bool replaced;  // carries kReplacedSuffix
};
// Nothing when `name` is not a step folder's.
std::optional<StepName> parse_step_name(std::string_view name);

}  // namespace heddle::internal
