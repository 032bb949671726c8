// The headers of this folder are the only place of instructions that C++ has no words for. nvcc
// gets PTX; a host compiler gets the emulator of tests/cuda_emulator, which also wants to know
// where the kernel asked.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDACC__)
#define HEDDLE_CALL_SITE
#define HEDDLE_NO_CALL_SITE void
#else
#include <cuda_emulator.h>
// Last parameter of a function that reports its caller.
#define HEDDLE_CALL_SITE \
  , ::heddle::emulator::Location where = ::heddle::emulator::Location::current()
#define HEDDLE_NO_CALL_SITE \
  ::heddle::emulator::Location where = ::heddle::emulator::Location::current()
#endif
