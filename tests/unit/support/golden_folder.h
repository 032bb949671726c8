// Where the golden data lie: HEDDLE_GOLDEN, for programs that leave the source tree, or
// tests/golden.
#pragma once

#include <cstdlib>
#include <string>

namespace heddle::testing {

inline std::string golden_folder() {
  const char* named = std::getenv("HEDDLE_GOLDEN");
  return named != nullptr ? named : HEDDLE_SOURCE_DIR "/tests/golden";
}

}  // namespace heddle::testing
