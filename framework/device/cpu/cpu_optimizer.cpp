// AdamW and the parts of Muon around its matrix products. Norms are taken in fp64.
#include <algorithm>
#include <cmath>

#include "framework/core/parallel_for.h"
#include "framework/device/cpu/cpu_ops.h"

namespace heddle {
namespace {

constexpr int64_t kUnit = 1024;

double sum(const double* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

// Squares (fp64) and factors (fp32) of the rows or columns of one matrix.
struct LineScratch {
  explicit LineScratch(int64_t lines)
      : squares(static_cast<double*>(
            thread_scratch(static_cast<size_t>(lines) * (sizeof(double) + sizeof(float))))),
        factors(reinterpret_cast<float*>(squares + lines)) {}
  double* squares;
  float* factors;
};

}  // namespace

void CpuOps::adamw(const AdamWValues* values, const float* grad, float* p, float* m, float* v,
                   int64_t n) {
  const kernels::AdamW op{values->beta1,     values->beta2,     values->eps,
                          values->decay,     values->step_size, values->inv_sqrt_bias2,
                          values->grad_scale};
  parallel_for((n + kUnit - 1) / kUnit, 8, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * kUnit, stop = std::min(n, end * kUnit);
    table_.adamw(op, grad + at, p + at, m + at, v + at, stop - at);
  });
}

void CpuOps::muon_prepare(const MuonValues* values, const float* grad, float* momentum,
                          int64_t rows, int64_t cols, float* x) {
  LineScratch line(rows);
  const kernels::MuonMomentum op{grad, values->grad_scale, values->momentum, cols, momentum, x};
  parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    table_.muon_momentum(op, begin, end, line.squares);
  });
  const double wanted = std::sqrt(sum(line.squares, rows) / static_cast<double>(rows));
  double total = 0;  // sum of squares once the rows are equal
  for (int64_t r = 0; r < rows; ++r) {
    const double norm = std::sqrt(line.squares[r]), factor = wanted / std::max(norm, 1e-6);
    line.squares[r] = factor;
    total += norm * factor * norm * factor;
  }
  const double divisor = 1.01 * std::sqrt(total) + 1e-6;
  for (int64_t r = 0; r < rows; ++r) {
    line.factors[r] = static_cast<float>(line.squares[r] / divisor);
  }
  parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    table_.scale_rows(x, cols, line.factors, begin, end);
  });
}

void CpuOps::muon_finish(const MuonValues* values, float* x, float* second, float beta2,
                         int64_t rows, int64_t cols, float* p) {
  const bool by_row = rows >= cols;
  const int64_t lines = by_row ? rows : cols, length = by_row ? cols : rows;
  LineScratch line(lines);
  if (by_row) {
    parallel_for(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
      table_.row_squares(x, cols, begin, end, line.squares);
    });
  } else {
    constexpr int64_t kStrip = 64;  // columns: a few cache lines of every row
    parallel_for((cols + kStrip - 1) / kStrip, row_grain(kStrip * rows),
                 [&](int64_t begin, int64_t end) {
                   table_.col_squares(x, rows, cols, begin * kStrip, std::min(cols, end * kStrip),
                                      line.squares);
                 });
  }
  const double norm = std::sqrt(sum(line.squares, lines));
  const double snap = std::sqrt(static_cast<double>(length)) / std::max(norm, 1e-6);
  double before = 0, after = 0;  // N^2 and N'^2
  for (int64_t i = 0; i < lines; ++i) {
    const double total = line.squares[i] * snap * snap;  // d * u
    const double mean = total / static_cast<double>(length);
    second[i] = static_cast<float>(second[i] + (1.0 - beta2) * (mean - second[i]));
    const double weight = 1.0 / std::sqrt(std::max(static_cast<double>(second[i]), 1e-10));
    before += total;
    after += total * weight * weight;
    line.squares[i] = weight;
  }
  const double restore = snap * std::sqrt(before) / std::max(std::sqrt(after), 1e-10);
  for (int64_t i = 0; i < lines; ++i) {
    line.factors[i] = static_cast<float>(line.squares[i] * restore);
  }
  const kernels::MuonUpdate op{x,
                               by_row ? line.factors : nullptr,
                               by_row ? nullptr : line.factors,
                               values->lr,
                               values->weight_decay,
                               cols,
                               p};
  parallel_for(rows, row_grain(cols),
               [&](int64_t begin, int64_t end) { table_.muon_update(op, begin, end); });
}

}  // namespace heddle
