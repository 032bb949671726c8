// Numbers as configuration files may write them: 60_000, 1e-3, 0.02, 1e6, 0x10. Spellings that
// YAML readers disagree about (010, 1:30) or that are not finite are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::config_internal {

struct Number {
  double real = 0;
  std::optional<int64_t> integer;  // when the value is an integer that int64_t holds exactly
  std::string problem;             // empty, or why the text is refused: "not a number"
  std::string remedy;              // a sentence, may be empty

  bool ok() const { return problem.empty(); }
};

Number parse_number(std::string_view text);

}  // namespace heddle::config_internal
