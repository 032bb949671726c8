// Softcap, cross-entropy and its gradient on rows of logits.
#pragma once

#include "kernels/cpu/ops/math.h"
#include "kernels/cpu/ops/ops_table.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

// Up to here exp(cap) * vocab fits fp32 and exp(-cap) is not lost: no maximum to subtract.
constexpr float kLargestFreeCap = 60.0f;

constexpr int64_t kLossPiece = 2048;  // summed in fp32; pieces are summed in fp64

float row_max(const float* z, int64_t n) {
  Vec best[4];
  for (Vec& b : best) b = splat(z[0]);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int s = 0; s < 4; ++s) best[s] = max(load(z + i + s * kLanes), best[s]);
  }
  for (; i + kLanes <= n; i += kLanes) best[0] = max(load(z + i), best[0]);
  best[0] = max(max(best[0], best[1]), max(best[2], best[3]));
  float top = best[0][0];
  for (int lane = 1; lane < kLanes; ++lane) top = best[0][lane] > top ? best[0][lane] : top;
  for (; i < n; ++i) top = z[i] > top ? z[i] : top;
  return top;
}

int32_t first_index(const float* z, int64_t n, float value) {
  for (int64_t i = 0; i < n; ++i) {
    if (z[i] == value) return static_cast<int32_t>(i);
  }
  return 0;
}

// Sum of e = exp(cap(z) - shift); with kGradient z becomes e * d cap / d z.
template <bool kCap, bool kGradient>
HEDDLE_INLINE double sum_exp(float* z, int64_t n, float cap, float shift) {
  const float inverse = kCap ? 1.0f / cap : 0.0f;
  const auto weigh = [&](Vec raw, Vec* slope) HEDDLE_LAMBDA {
    if constexpr (!kCap) return exp(raw - shift);
    const Vec t = tanh(raw * inverse);
    *slope = 1.0f - t * t;
    return exp(t * cap - shift);
  };
  double total = 0;
  int64_t i = 0;
  while (i + kLanes <= n) {
    const int64_t end = n - i < kLossPiece ? n : i + kLossPiece;
    Vec sum = {};
    for (; i + kLanes <= end; i += kLanes) {
      Vec slope = splat(1.0f);
      const Vec e = weigh(load(z + i), &slope);
      sum += e;
      if constexpr (kGradient) store(z + i, e * slope);
    }
    total += reduce(sum);
  }
  if (i < n) {
    Vec slope = splat(1.0f);
    const Vec e = weigh(load_partial(z + i, n - i), &slope);
    for (int64_t lane = 0; lane < n - i; ++lane) total += e[lane];
    if constexpr (kGradient) store_partial(z + i, e * slope, n - i);
  }
  return total;
}

template <bool kCap, bool kGradient>
HEDDLE_INLINE void loss_row(const LossRows& op, int64_t n) {
  float* z = op.z + n * op.ld;
  const float cap = op.softcap;
  const int32_t target = op.targets[n];
  const bool subtract = !kCap || cap > kLargestFreeCap;
  float top = 0;
  if (subtract || op.argmax != nullptr) top = row_max(z, op.vocab);
  if (op.argmax != nullptr) op.argmax[n] = first_index(z, op.vocab, top);
  if (target < 0) {
    op.loss[n] = 0;
    if constexpr (kGradient) __builtin_memset(z, 0, sizeof(float) * op.vocab);
    return;
  }
  const auto capped = [&](float x) { return kCap ? cap * tanh(splat(x / cap))[0] : x; };
  const float shift = subtract ? capped(top) : 0.0f;
  const float logit = capped(z[target]);
  const double total = sum_exp<kCap, kGradient>(z, op.vocab, cap, shift);
  op.loss[n] = static_cast<float>(__builtin_log(total) - (static_cast<double>(logit) - shift));
  if constexpr (kGradient) {
    const float inverse = static_cast<float>(1.0 / total);
    const float slope = kCap ? 1.0f - (logit / cap) * (logit / cap) : 1.0f;
    each_vector(op.vocab, [&](int64_t i, auto io, int)
                              HEDDLE_LAMBDA { io.store(z + i, io.load(z + i) * inverse); });
    z[target] -= slope;
  }
}

void loss_rows(const LossRows& op, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    if (op.softcap > 0) {
      op.gradient ? loss_row<true, true>(op, n) : loss_row<true, false>(op, n);
    } else {
      op.gradient ? loss_row<false, true>(op, n) : loss_row<false, false>(op, n);
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
