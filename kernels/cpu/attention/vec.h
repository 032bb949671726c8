// Vectors of one ISA on compiler vector types, and the few operations attention needs.
//
// Included only by the objects of kernels/cpu/attention, once per ISA, with
//   HEDDLE_ISA    the namespace of the object, e.g. avx2
//   HEDDLE_LANES  floats per vector: 4, 8 or 16
// Everything is always inlined or lives in that namespace: no symbol may be shared between objects
// of different ISAs, or the linker could keep the wrong copy. For the same reason the standard
// library serves only with types and constants here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#define HEDDLE_INLINE [[gnu::always_inline]] inline
// GCC keeps an array of accumulators in registers only when every loop over it is unrolled.
#define HEDDLE_UNROLL _Pragma("GCC unroll 16")

namespace heddle::kernels::cpu::HEDDLE_ISA {

inline constexpr int kLanes = HEDDLE_LANES;

typedef float Vec __attribute__((vector_size(4 * HEDDLE_LANES)));
typedef int32_t VecI __attribute__((vector_size(4 * HEDDLE_LANES)));
typedef float VecUnaligned __attribute__((vector_size(4 * HEDDLE_LANES), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16)));
typedef float QuadUnaligned __attribute__((vector_size(16), aligned(4), may_alias));

HEDDLE_INLINE Vec load(const float* p) {
  return *reinterpret_cast<const VecUnaligned*>(p);
}
HEDDLE_INLINE void store(float* p, Vec x) {
  *reinterpret_cast<VecUnaligned*>(p) = x;
}
HEDDLE_INLINE Quad load_quad(const float* p) {
  return *reinterpret_cast<const QuadUnaligned*>(p);
}
HEDDLE_INLINE void store_quad(float* p, Quad x) {
  *reinterpret_cast<QuadUnaligned*>(p) = x;
}

// x - 0 folds to x for every x, x + 0 does not (-0).
HEDDLE_INLINE Vec splat(float x) {
  return x - Vec{};
}
HEDDLE_INLINE VecI splat(int32_t x) {
  return x - VecI{};
}

HEDDLE_INLINE Vec as_float(VecI x) {
  return reinterpret_cast<Vec>(x);
}
HEDDLE_INLINE VecI as_int(Vec x) {
  return reinterpret_cast<VecI>(x);
}

// A NaN in b is kept, a NaN in a is dropped (maxps).
HEDDLE_INLINE Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}

// `lanes` is all ones where x is wanted and zero where y is.
HEDDLE_INLINE Vec select(VecI lanes, Vec x, Vec y) {
  return as_float((as_int(x) & lanes) | (as_int(y) & ~lanes));
}

// n < kLanes floats; the other lanes are zero and their memory is not touched.
HEDDLE_INLINE Vec load_partial(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
HEDDLE_INLINE void store_partial(float* p, Vec x, int64_t n) {
  float lanes[kLanes];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// 2^x for x < 127.5 with a relative error of at most 2e-7; exactly 0 below -126.5, so that a score
// of -inf gives a weight of 0. NaN stays NaN.
HEDDLE_INLINE Vec exp2(Vec x) {
  // 1.5 * 2^23 leaves the nearest integer in the low bits; + 127 makes it an exponent field,
  // which is 0 for -127.
  constexpr float kRound = 12582912.0f + 127.0f;
  const Vec clamped = max(splat(-127.0f), x);
  const Vec shifted = clamped + splat(kRound);
  const Vec power = as_float(as_int(shifted) << 23);
  const Vec f = clamped - (shifted - splat(kRound));  // in [-0.5, 0.5]
  // Minimax polynomial of relative error on that interval, its constant term rounded to 1.
  Vec p = splat(1.327647217e-3f);
  p = p * f + splat(9.675541331e-3f);
  p = p * f + splat(5.550713273e-2f);
  p = p * f + splat(2.402211972e-1f);
  p = p * f + splat(6.931469671e-1f);
  p = p * f + splat(1.0f);
  return p * power;
}

// Lane permutations inside 128-bit quarters, the cheap kind on every ISA.
template <int... I>
HEDDLE_INLINE Vec interleave_low(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I & ~3) + (I & 3) / 2 + (I & 1) * kLanes)...);
}
template <int... I>
HEDDLE_INLINE Vec interleave_high(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I & ~3) + 2 + (I & 3) / 2 + (I & 1) * kLanes)...);
}
template <int... I>
HEDDLE_INLINE Vec pairs_low(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I & ~3) + (I & 1) + (I & 2) / 2 * kLanes)...);
}
template <int... I>
HEDDLE_INLINE Vec pairs_high(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I & ~3) + 2 + (I & 1) + (I & 2) / 2 * kLanes)...);
}
using LaneIndices = std::make_integer_sequence<int, kLanes>;

template <int... I>
HEDDLE_INLINE VecI lane_numbers(std::integer_sequence<int, I...>) {
  return VecI{I...};
}
HEDDLE_INLINE VecI lane_numbers() {
  return lane_numbers(LaneIndices{});
}

// Transposes the 4x4 matrix that each quarter of x[0..3] holds.
HEDDLE_INLINE void transpose_quarters(Vec x[4]) {
  constexpr LaneIndices kAll{};
  const Vec a = interleave_low(x[0], x[1], kAll), b = interleave_low(x[2], x[3], kAll);
  const Vec c = interleave_high(x[0], x[1], kAll), d = interleave_high(x[2], x[3], kAll);
  x[0] = pairs_low(a, b, kAll);
  x[1] = pairs_high(a, b, kAll);
  x[2] = pairs_low(c, d, kAll);
  x[3] = pairs_high(c, d, kAll);
}

template <int G>
HEDDLE_INLINE Quad quarter(Vec x) {
#if HEDDLE_LANES == 4
  return x;
#else
  return __builtin_shufflevector(x, x, 4 * G, 4 * G + 1, 4 * G + 2, 4 * G + 3);
#endif
}

// Quarter g is four floats at base + g * stride.
HEDDLE_INLINE Vec load_quarters(const float* base, int64_t stride) {
#if HEDDLE_LANES == 4
  (void)stride;
  return load_quad(base);
#else
  const Quad a = load_quad(base), b = load_quad(base + stride);
#if HEDDLE_LANES == 8
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  const Quad c = load_quad(base + 2 * stride), d = load_quad(base + 3 * stride);
  const auto low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
  const auto high = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
#endif
}
HEDDLE_INLINE void store_quarters(float* base, int64_t stride, Vec x) {
  store_quad(base, quarter<0>(x));
#if HEDDLE_LANES == 4
  (void)stride;
#else
  store_quad(base + stride, quarter<1>(x));
#if HEDDLE_LANES == 16
  store_quad(base + 2 * stride, quarter<2>(x));
  store_quad(base + 3 * stride, quarter<3>(x));
#endif
#endif
}

HEDDLE_INLINE Quad sum_of_quarters(Vec x) {
  Quad sum = quarter<0>(x);
#if HEDDLE_LANES >= 8
  sum += quarter<1>(x);
#endif
#if HEDDLE_LANES == 16
  sum += quarter<2>(x) + quarter<3>(x);
#endif
  return sum;
}

// The sums over the lanes of four vectors.
HEDDLE_INLINE Quad horizontal_sums(Vec a, Vec b, Vec c, Vec d) {
  constexpr LaneIndices kAll{};
  const Vec ab = interleave_low(a, b, kAll) + interleave_high(a, b, kAll);
  const Vec cd = interleave_low(c, d, kAll) + interleave_high(c, d, kAll);
  return sum_of_quarters(pairs_low(ab, cd, kAll) + pairs_high(ab, cd, kAll));
}

HEDDLE_INLINE float horizontal_sum(Vec x) {
  const Quad q = sum_of_quarters(x);
  return (q[0] + q[1]) + (q[2] + q[3]);
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
