// exp, tanh and sigmoid of a vector. After Cephes' expf: x = n ln 2 + r, a polynomial in r, and n
// put into the exponent.
#pragma once

#include "kernels/cpu/ops/ops_table.h"
#include "kernels/cpu/ops/vec.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

struct Reduced {
  Vec power;  // 2^n
  Vec expm1;  // e^r - 1, |r| <= ln(2) / 2
};

// x in [-87.3, 88.3]
HEDDLE_INLINE Reduced reduce_exp(Vec x) {
  // 1.5 * 2^23 leaves the nearest integer in the low bits, + 127 makes it an exponent field.
  constexpr float kRound = 12582912.0f + 127.0f;
  const Vec shifted = x * 1.44269504088896341f + kRound;
  const Vec n = shifted - kRound;
  // ln 2 in two parts, the first short enough that n times it is exact.
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {as_float(as_bits(shifted) << 23), p * (r * r) + r};
}

// Clamped to [-87.3, 88.3] (1e-38 .. 2e38); NaN stays NaN.
HEDDLE_INLINE Vec exp(Vec x) {
  const Reduced e = reduce_exp(min(splat(88.3f), max(splat(-87.3f), x)));
  return (e.expm1 + 1.0f) * e.power;
}

HEDDLE_INLINE Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}
HEDDLE_INLINE float sigmoid(float x) {
  return sigmoid(splat(x))[0];
}

// (e^2|x| - 1) / (e^2|x| + 1) with the sign of x: accurate for small x too.
HEDDLE_INLINE Vec tanh(Vec x) {
  const VecU sign = as_bits(x) & 0x80000000u;
  const Vec size = min(splat(10.0f), as_float(as_bits(x) ^ sign));
  const Reduced e = reduce_exp(size + size);
  const Vec expm1 = e.power * e.expm1 + (e.power - 1.0f);
  return as_float(as_bits(expm1 / (expm1 + 2.0f)) | sign);
}

void exp_range(const float* x, float* y, int64_t n) {
  each_vector(n,
              [&](int64_t i, auto io, int) HEDDLE_LAMBDA { io.store(y + i, exp(io.load(x + i))); });
}

void tanh_range(const float* x, float* y, int64_t n) {
  each_vector(
      n, [&](int64_t i, auto io, int) HEDDLE_LAMBDA { io.store(y + i, tanh(io.load(x + i))); });
}

void sigmoid_range(const float* x, float* y, int64_t n) {
  each_vector(
      n, [&](int64_t i, auto io, int) HEDDLE_LAMBDA { io.store(y + i, sigmoid(io.load(x + i))); });
}

float fma_burst(int64_t iterations) {
  Vec chain[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) chain[c] = splat(static_cast<float>(c));
  const Vec a = splat(0.9999f), b = splat(1e-3f);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kFmaChains; ++c) chain[c] = chain[c] * a + b;
  }
  Vec sum = {};
  for (int c = 0; c < kFmaChains; ++c) sum += chain[c];
  return reduce(sum);
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
