// Vectors of one instruction set on compiler vector types, and loops over them.
//
// Included only by table.cpp, once per object, with
//   HEDDLE_ISA    namespace and name of the object, e.g. avx2
//   HEDDLE_LANES  floats per vector: 4, 8 or 16 (16 also compiles for AVX2, as two halves)
// Everything is always inlined or has internal linkage, and nothing here uses the standard library:
// a symbol shared between objects could be kept by the linker in the wrong instruction set.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define HEDDLE_INLINE [[gnu::always_inline]] inline
#define HEDDLE_LAMBDA __attribute__((always_inline))

namespace heddle::kernels::HEDDLE_ISA {
namespace {

constexpr int64_t kLanes = HEDDLE_LANES;

typedef float Vec __attribute__((vector_size(4 * HEDDLE_LANES)));
typedef uint32_t VecU __attribute__((vector_size(4 * HEDDLE_LANES)));
typedef int32_t VecI __attribute__((vector_size(4 * HEDDLE_LANES)));
typedef double VecD __attribute__((vector_size(8 * HEDDLE_LANES)));
typedef float VecUnaligned __attribute__((vector_size(4 * HEDDLE_LANES), aligned(4), may_alias));
typedef float Vec4 __attribute__((vector_size(16)));
typedef float Vec8 __attribute__((vector_size(32)));

HEDDLE_INLINE Vec load(const float* p) {
  return *reinterpret_cast<const VecUnaligned*>(p);
}
HEDDLE_INLINE void store(float* p, Vec x) {
  *reinterpret_cast<VecUnaligned*>(p) = x;
}

// x - 0 folds to x for every x; x + 0 does not (-0).
HEDDLE_INLINE Vec splat(float x) {
  return x - Vec{};
}

HEDDLE_INLINE Vec as_float(VecU x) {
  return reinterpret_cast<Vec>(x);
}
HEDDLE_INLINE VecU as_bits(Vec x) {
  return reinterpret_cast<VecU>(x);
}

// A NaN in b is kept, a NaN in a is dropped.
HEDDLE_INLINE Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
HEDDLE_INLINE Vec min(Vec a, Vec b) {
  return a < b ? a : b;
}

// x where the mask is set, else 0.
HEDDLE_INLINE Vec where(VecI mask, Vec x) {
  return as_float(as_bits(x) & reinterpret_cast<VecU>(mask));
}

#if HEDDLE_LANES == 4
HEDDLE_INLINE Vec sqrt(Vec x) {
  return _mm_sqrt_ps(x);
}
HEDDLE_INLINE Vec load_partial(const float* p, int64_t n) {
  Vec x = {};
  for (int64_t i = 0; i < n; ++i) x[i] = p[i];
  return x;
}
HEDDLE_INLINE void store_partial(float* p, Vec x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = x[i];
}
#elif HEDDLE_LANES == 8 || !defined(__AVX512F__)
// All ones in lanes below n.
HEDDLE_INLINE __m256i mask8(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
#if HEDDLE_LANES == 8
HEDDLE_INLINE Vec sqrt(Vec x) {
  return _mm256_sqrt_ps(x);
}
HEDDLE_INLINE Vec load_partial(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, mask8(n));
}
HEDDLE_INLINE void store_partial(float* p, Vec x, int64_t n) {
  _mm256_maskstore_ps(p, mask8(n), x);
}
#else
HEDDLE_INLINE Vec8 low(Vec x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
}
HEDDLE_INLINE Vec8 high(Vec x) {
  return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
}
HEDDLE_INLINE Vec join(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
HEDDLE_INLINE Vec sqrt(Vec x) {
  return join(_mm256_sqrt_ps(low(x)), _mm256_sqrt_ps(high(x)));
}
HEDDLE_INLINE Vec load_partial(const float* p, int64_t n) {
  const Vec8 upper = n > 8 ? _mm256_maskload_ps(p + 8, mask8(n - 8)) : _mm256_setzero_ps();
  return join(_mm256_maskload_ps(p, mask8(n)), upper);
}
HEDDLE_INLINE void store_partial(float* p, Vec x, int64_t n) {
  _mm256_maskstore_ps(p, mask8(n), low(x));
  if (n > 8) _mm256_maskstore_ps(p + 8, mask8(n - 8), high(x));
}
#endif
#else
HEDDLE_INLINE __mmask16 mask16(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
// The unmasked intrinsic warns of an uninitialised variable of its own (GCC 12).
HEDDLE_INLINE Vec sqrt(Vec x) {
  return _mm512_maskz_sqrt_ps(0xffff, x);
}
HEDDLE_INLINE Vec load_partial(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(mask16(n), p);
}
HEDDLE_INLINE void store_partial(float* p, Vec x, int64_t n) {
  _mm512_mask_storeu_ps(p, mask16(n), x);
}
#endif

// Sums of halves, and over all lanes, in a fixed order.
HEDDLE_INLINE float reduce4(Vec4 x) {
  return (x[0] + x[2]) + (x[1] + x[3]);
}
HEDDLE_INLINE Vec4 fold8(Vec8 x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
}
#if HEDDLE_LANES == 16
HEDDLE_INLINE Vec8 fold16(Vec x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
         __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif
HEDDLE_INLINE float reduce(Vec x) {
#if HEDDLE_LANES == 4
  return reduce4(x);
#elif HEDDLE_LANES == 8
  return reduce4(fold8(x));
#else
  return reduce4(fold8(fold16(x)));
#endif
}

// How a loop body touches memory: whole vectors, or the first n < kLanes floats (others read 0).
struct Whole {
  HEDDLE_INLINE Vec load(const float* p) const { return HEDDLE_ISA::load(p); }
  HEDDLE_INLINE void store(float* p, Vec x) const { HEDDLE_ISA::store(p, x); }
};
struct Part {
  int64_t n;
  HEDDLE_INLINE Vec load(const float* p) const { return load_partial(p, n); }
  HEDDLE_INLINE void store(float* p, Vec x) const { store_partial(p, x, n); }
};

// Accumulators of a reduction: one per unrolled step hides the latency of an addition.
struct Sum {
  Vec part[4] = {};
  HEDDLE_INLINE float total() const { return reduce((part[0] + part[2]) + (part[1] + part[3])); }
};

// body(i, io, slot) for i = 0, kLanes, 2 kLanes, ... < n; slot in [0, 4) names an accumulator.
template <class Body>
HEDDLE_INLINE void each_vector(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    body(i, Whole{}, 0);
    body(i + kLanes, Whole{}, 1);
    body(i + 2 * kLanes, Whole{}, 2);
    body(i + 3 * kLanes, Whole{}, 3);
  }
  for (; i + kLanes <= n; i += kLanes) body(i, Whole{}, 0);
  if (i < n) body(i, Part{n - i}, 0);
}

HEDDLE_INLINE float dot(const float* a, const float* b, int64_t n) {
  Sum sum;
  each_vector(n, [&](int64_t i, auto io, int slot)
                     HEDDLE_LAMBDA { sum.part[slot] += io.load(a + i) * io.load(b + i); });
  return sum.total();
}

// 1 / sqrt(sum_squares / n + eps)
HEDDLE_INLINE float reciprocal_rms(float sum_squares, int64_t n, float eps) {
  return 1.0f / __builtin_sqrtf(sum_squares / static_cast<float>(n) + eps);
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
