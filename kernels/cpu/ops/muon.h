// The elementwise parts of Muon around its matrix products.
#pragma once

#include "kernels/cpu/ops/elementwise.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

void muon_momentum(const MuonMomentum& op, int64_t begin, int64_t end, double* row_squares) {
  for (int64_t r = begin; r < end; ++r) {
    const float* grad = op.grad + r * op.cols;
    float *m = op.m + r * op.cols, *x = op.x + r * op.cols;
    Sum squares;
    each_vector(op.cols, [&](int64_t i, auto io, int slot) HEDDLE_LAMBDA {
      const Vec g = io.load(grad + i) * op.grad_scale;
      const Vec old = io.load(m + i);
      const Vec mean = old + (1.0f - op.momentum) * (g - old);
      const Vec ahead = g + op.momentum * (mean - g);
      io.store(m + i, mean);
      io.store(x + i, ahead);
      squares.part[slot] += ahead * ahead;
    });
    row_squares[r] = squares.total();
  }
}

void scale_rows(float* x, int64_t cols, const float* factor, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    float* row = x + r * cols;
    each_vector(cols, [&](int64_t i, auto io, int)
                          HEDDLE_LAMBDA { io.store(row + i, io.load(row + i) * factor[r]); });
  }
}

void row_squares(const float* x, int64_t cols, int64_t begin, int64_t end, double* squares) {
  for (int64_t r = begin; r < end; ++r) squares[r] = sum_squares(x + r * cols, cols);
}

// Strips of 64 columns; 64 rows are summed in fp32, then added in fp64.
void col_squares(const float* x, int64_t rows, int64_t cols, int64_t begin, int64_t end,
                 double* squares) {
  constexpr int64_t kStrip = 64, kRows = 64;
  float partial[kStrip];
  for (int64_t c = begin; c < end; c += kStrip) {
    const int64_t width = end - c < kStrip ? end - c : kStrip;
    for (int64_t i = 0; i < width; ++i) squares[c + i] = 0;
    for (int64_t r = 0; r < rows; r += kRows) {
      for (float& p : partial) p = 0;
      const int64_t stop = rows - r < kRows ? rows : r + kRows;
      for (int64_t q = r; q < stop; ++q) {
        const float* row = x + q * cols + c;
        each_vector(width, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
          const Vec value = io.load(row + i);
          io.store(partial + i, io.load(partial + i) + value * value);
        });
      }
      for (int64_t i = 0; i < width; ++i) squares[c + i] += partial[i];
    }
  }
}

void muon_update(const MuonUpdate& op, int64_t begin, int64_t end) {
  const float lr = op.lr, decay = op.lr * op.weight_decay;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = op.x + r * op.cols;
    float* p = op.p + r * op.cols;
    const auto pass = [&](auto factor) HEDDLE_LAMBDA {
      each_vector(op.cols, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
        const Vec u = io.load(x + i) * factor(i, io), old = io.load(p + i);
        io.store(p + i, old - lr * u - where(u * old >= 0.0f, decay * old));
      });
    };
    if (op.row_factor != nullptr) {
      const Vec same = splat(op.row_factor[r]);
      pass([&](int64_t, auto) HEDDLE_LAMBDA { return same; });
    } else {
      pass([&](int64_t i, auto io) HEDDLE_LAMBDA { return io.load(op.col_factor + i); });
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
