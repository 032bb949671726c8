#include "plugins/conformance/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "plugins/abi/heddle_attention.h"

namespace heddle::conformance {
namespace {

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t to_f16(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000u : 0u);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00u);
  const double size = std::fabs(static_cast<double>(value));
  if (size >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00u);
  if (size < 0x1p-14) {  // subnormal: a multiple of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24)));
  }
  int exponent = 0;
  const double fraction = std::frexp(size, &exponent);                             // [0.5, 1)
  const auto mantissa = static_cast<uint32_t>(std::nearbyint(fraction * 2048.0));  // 1024..2048
  return static_cast<uint16_t>(sign |
                               ((static_cast<uint32_t>(exponent + 14) << 10) + (mantissa - 1024u)));
}

float from_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) {
    return static_cast<float>(mantissa ? std::nan("") : sign * HUGE_VAL);
  }
  if (exponent == 0) return static_cast<float>(sign * std::ldexp(mantissa, -24));
  return static_cast<float>(sign * std::ldexp(1024 + mantissa, exponent - 25));
}

}  // namespace

int64_t element_bytes(uint32_t dtype) {
  return dtype == HEDDLE_DTYPE_F32 ? 4 : 2;
}

void store_element(uint32_t dtype, float value, std::byte* target) {
  if (dtype == HEDDLE_DTYPE_F32) {
    std::memcpy(target, &value, sizeof value);
    return;
  }
  const uint16_t half = dtype == HEDDLE_DTYPE_BF16 ? to_bf16(value) : to_f16(value);
  std::memcpy(target, &half, sizeof half);
}

float load_element(uint32_t dtype, const std::byte* source) {
  float value = 0.0f;
  if (dtype == HEDDLE_DTYPE_F32) {
    std::memcpy(&value, source, sizeof value);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, source, sizeof half);
  return dtype == HEDDLE_DTYPE_BF16 ? from_bf16(half) : from_f16(half);
}

float rounded(uint32_t dtype, float value) {
  std::byte bytes[4];
  store_element(dtype, value, bytes);
  return load_element(dtype, bytes);
}

}  // namespace heddle::conformance
