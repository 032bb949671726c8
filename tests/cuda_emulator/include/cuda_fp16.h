// IEEE half as the toolkit names it, on the host.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 1023u;
  if (exponent == 0) {  // zero or a multiple of 2^-24
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f) |
                                sign);
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}
inline __half __float2half_rn(float x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000u : 0u);
  if (std::isnan(x)) return {0x7fff};
  const float size = std::fabs(x);
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (size < 0x1p-14f) {
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyintf(size * 0x1p24f)))};
  }
  const auto bits = std::bit_cast<uint32_t>(size);
  const uint32_t rounded = bits + 0xfffu + ((bits >> 13) & 1u);  // to nearest, ties to even
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)))};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
