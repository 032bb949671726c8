// The floating-point mode of the calling thread, which a plugin has to leave alone: a library that
// was linked with -ffast-math turns denormals off for its host when it is loaded.
#pragma once

#include <fmt/format.h>
#include <xmmintrin.h>

#include <cstdint>
#include <string>

#include "framework/core/error.h"

namespace heddle {

class FpControlGuard {
 public:
  // Puts the mode back and throws heddle::Error (plugin) when it is not what it was at
  // construction. `doing` completes "changed the floating-point mode while ...".
  void check(const std::string& doing) const {
    const uint32_t now = control();
    if (now == before_) return;
    _mm_setcsr((_mm_getcsr() & kSticky) | before_);
    throw plugin_error(
        fmt::format("changed the floating-point mode while {} (MXCSR {:04x} -> {:04x})", doing,
                    before_, now),
        "link it without -ffast-math and -Ofast; compiling with -O3 -fno-math-errno is fine");
  }

 private:
  static constexpr uint32_t kSticky = 0x3f;  // exception flags, not mode
  static uint32_t control() { return _mm_getcsr() & ~kSticky; }

  uint32_t before_ = control();
};

}  // namespace heddle
