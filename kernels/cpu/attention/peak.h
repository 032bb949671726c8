// A burst of independent fused multiply-adds: the rate that nothing on this core can exceed.
#pragma once

#include <time.h>

#include "kernels/cpu/attention/vec.h"

namespace heddle::kernels::cpu::HEDDLE_ISA {

inline double seconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// FLOP per second on the calling thread, the best of several slices of the given time.
inline double measure_peak(double seconds) {
  constexpr int kChains = 12;  // covers a latency of up to 6 cycles on two FMA ports
  constexpr int64_t kRounds = 20000;
  // Volatile ends keep the work between the two readings of the clock.
  volatile float source = 0.999f, sink = 0.0f;
  Vec x[kChains];
  HEDDLE_UNROLL
  for (int c = 0; c < kChains; ++c) x[c] = splat(static_cast<float>(c));
  double best = 0.0;
  const double start = seconds_now();
  for (double begin = start; begin - start < seconds;) {
    const Vec factor = splat(source), addend = splat(1.0f - source);
    for (int64_t i = 0; i < kRounds; ++i) {
      HEDDLE_UNROLL
      for (int c = 0; c < kChains; ++c) x[c] = x[c] * factor + addend;
    }
    Vec total = {};
    HEDDLE_UNROLL
    for (int c = 0; c < kChains; ++c) total += x[c];
    sink = horizontal_sum(total);
    const double end = seconds_now();
    const double rate = 2.0 * kLanes * kChains * kRounds / (end - begin);
    if (rate > best) best = rate;
    begin = end;
  }
  (void)sink;
  return best;
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
