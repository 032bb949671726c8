// What a reason's `want` says, as values to try: "in{64,128}", "in[1,256]", "<=256", ">=4", "==1",
// "%8==0", "divides n_head".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugins/abi/heddle_attention.h"

namespace heddle::conformance {

// Values that satisfy `want`; nothing when its form is not one of the above. Text in parentheses
// behind the form is ignored.
std::optional<std::vector<int64_t>> wanted_values(const std::string& want,
                                                  const heddle_attention_problem& problem);

// A field of the problem by its name; required_features follow. False: no such scalar field.
bool set_field(heddle_attention_problem& problem, const std::string& field, int64_t value);
std::optional<int64_t> get_field(const heddle_attention_problem& problem, const std::string& field);

}  // namespace heddle::conformance
