// The floating-point mode of the calling thread: rounding, denormals, exception masks.
#pragma once

#include <cfenv>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace heddle::conformance {

struct FpMode {
  uint32_t control = 0;  // MXCSR without its sticky flags; 0 where there is none
  int rounding = 0;

  static FpMode current() {
    FpMode mode;
#if defined(__x86_64__)
    mode.control = _mm_getcsr() & ~0x3fu;
#endif
    mode.rounding = std::fegetround();
    return mode;
  }
  void restore() const {
    std::fesetround(rounding);
#if defined(__x86_64__)
    _mm_setcsr(control);
#endif
  }
  friend bool operator==(const FpMode&, const FpMode&) = default;
};

}  // namespace heddle::conformance
