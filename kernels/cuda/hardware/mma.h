// mma.sync.m16n8k16 on bf16 or fp16 with fp32 sums: d (16x8) += a (16x16) b (16x8), by a whole
// warp. With g = lane / 4, t = lane % 4:
//   a[i]: row g + 8 (i & 1),  columns 2 t + 8 (i >> 1) and the next
//   b[i]: column g,           rows 2 t + 8 i and the next
//   d[i]: row g + 8 (i >> 1), column 2 t + (i & 1)
// So the fp32 sums of two neighbouring 16x8 tiles, rounded, are an operand a.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/hardware/call_site.h"

namespace heddle::kernels::cuda {

template <class T>
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1 HEDDLE_CALL_SITE) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
#if defined(__CUDACC__)
  if constexpr (kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  using ::heddle::emulator::Half;
  const uint32_t b[2] = {b0, b1};
  ::heddle::emulator::mma(d, a, b, kBf16 ? Half::kBf16 : Half::kFp16, where);
#endif
}

}  // namespace heddle::kernels::cuda
