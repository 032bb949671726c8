// HEDDLE_HD marks functions that host and device code share.
//
// On the host they are always inlined: several objects compile these headers with different
// instruction sets, and an out-of-line copy built for AVX-512 could be the one the linker keeps
// for everybody.
#pragma once

#if defined(__CUDACC__)
#define HEDDLE_HD __host__ __device__ __forceinline__
#else
#define HEDDLE_HD [[gnu::always_inline]] inline
#endif
