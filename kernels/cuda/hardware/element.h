// The element types of tensors: conversions, pairs in a register, 16 bytes at once, and 2^x.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "kernels/cuda/hardware/call_site.h"

namespace heddle::kernels::cuda {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Two elements in a register, the first in the lower half.
template <class T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// Two neighbouring elements at an address that is a multiple of both.
template <class T>
__device__ inline void store_pair(T* to, float low, float high) {
  using Word [[gnu::may_alias]] = uint32_t;
  *reinterpret_cast<Word*>(to) = pack<T>(low, high);
}

// 16 bytes between addresses that are multiples of 16.
__device__ inline void copy16(void* to, const void* from HEDDLE_CALL_SITE) {
#if defined(__CUDACC__)
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#else
  ::heddle::emulator::touch(from, 16, false, where);
  ::heddle::emulator::touch(to, 16, true, where);
  memcpy(to, from, 16);
#endif
}

// 2^x with the accuracy of the special function unit (2 ulp); 0 for -inf.
__device__ inline float exp2_fast(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::exp2f(x);
#endif
}

}  // namespace heddle::kernels::cuda
