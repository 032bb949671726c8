// Kernels over ranges of elements.
#pragma once

#include "kernels/cpu/ops/math.h"
#include "kernels/cpu/ops/ops_table.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

void add(float* dst, const float* src, int64_t n) {
  each_vector(n, [&](int64_t i, auto io, int)
                     HEDDLE_LAMBDA { io.store(dst + i, io.load(dst + i) + io.load(src + i)); });
}

// fp32 within 1024 elements, fp64 between them.
double sum_squares(const float* x, int64_t n) {
  constexpr int64_t kPiece = 1024;
  double total = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    total += dot(x + i, x + i, n - i < kPiece ? n - i : kPiece);
  }
  return total;
}

void relu2_forward(float* x, int64_t n) {
  each_vector(n, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
    const Vec positive = max(Vec{}, io.load(x + i));
    io.store(x + i, positive * positive);
  });
}

void relu2_backward(float* da, const float* a, int64_t n) {
  each_vector(n, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
    const Vec root = sqrt(io.load(a + i));
    io.store(da + i, io.load(da + i) * (root + root));
  });
}

void softcap(float* x, float cap, int64_t n) {
  const float inverse = 1.0f / cap;
  each_vector(n, [&](int64_t i, auto io, int)
                     HEDDLE_LAMBDA { io.store(x + i, cap * tanh(io.load(x + i) * inverse)); });
}

void adamw(const AdamW& op, const float* grad, float* p, float* m, float* v, int64_t n) {
  const AdamW o = op;
  each_vector(n, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
    const Vec g = io.load(grad + i) * o.grad_scale;
    const Vec old_m = io.load(m + i), old_v = io.load(v + i);
    const Vec new_m = old_m + (1.0f - o.beta1) * (g - old_m);
    const Vec new_v = old_v + (1.0f - o.beta2) * (g * g - old_v);
    const Vec size = sqrt(new_v) * o.inv_sqrt_bias2 + o.eps;
    io.store(m + i, new_m);
    io.store(v + i, new_v);
    io.store(p + i, io.load(p + i) * o.decay - o.step_size * (new_m / size));
  });
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
