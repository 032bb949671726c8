// Products of few rows against fp64, and what the header promises about rows and ranges.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/kernels/cpu/ops/tables.h"

namespace heddle::kernels {
namespace {

class ThinMatmul : public OnEveryTable {};
HEDDLE_ON_EVERY_TABLE(ThinMatmul);

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t m, n, k;
  int64_t lda() const { return k + 3; }
  int64_t ldb() const { return k + 5; }
  int64_t ldc() const { return n + 2; }
  std::vector<float> a = noise(m * lda(), "a"), b = noise(n * ldb(), "b");

  ThinProduct product(float* c, float alpha, float beta) const {
    return {a.data(), lda(), b.data(), ldb(), c, ldc(), m, k, alpha, beta};
  }
  // Of row i and column j, and the sum of the terms' sizes, which bounds the rounding.
  std::pair<double, double> exact(int64_t i, int64_t j) const {
    double sum = 0, size = 0;
    for (int64_t p = 0; p < k; ++p) {
      const double term = static_cast<double>(a[i * lda() + p]) * b[j * ldb() + p];
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }
};

TEST_P(ThinMatmul, EveryShapeAgainstFp64) {
  for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 19}) {
    for (const int64_t n : {1, 2, 4, 7, 33}) {
      for (const int64_t k : {1, 5, 16, 37, 64, 400}) {
        const Case x{m, n, k};
        std::vector<float> c(m * x.ldc(), kNaN);
        table().thin_matmul(x.product(c.data(), 1.0f, 0.0f), 0, n);
        const auto first = c;
        table().thin_matmul(x.product(c.data(), -0.5f, 2.0f), 0, n);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const auto [sum, size] = x.exact(i, j);
            ASSERT_NEAR(first[i * x.ldc() + j], sum, 1e-6 * size) << m << " " << n << " " << k;
            ASSERT_NEAR(c[i * x.ldc() + j], 1.5 * sum, 3e-6 * size) << m << " " << n << " " << k;
          }
          for (int64_t j = n; j < x.ldc(); ++j) ASSERT_TRUE(std::isnan(c[i * x.ldc() + j]));
        }
      }
    }
  }
}

TEST_P(ThinMatmul, ColumnsCutAnywhere) {
  const Case x{5, 23, 70};
  std::vector<float> whole(5 * x.ldc(), kNaN), parts = whole;
  table().thin_matmul(x.product(whole.data(), 1.0f, 0.0f), 0, 23);
  table().thin_matmul(x.product(parts.data(), 1.0f, 0.0f), 9, 23);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 9; ++j) ASSERT_TRUE(std::isnan(parts[i * x.ldc() + j]));
  }
  table().thin_matmul(x.product(parts.data(), 1.0f, 0.0f), 0, 9);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 23; ++j) EXPECT_EQ(whole[i * x.ldc() + j], parts[i * x.ldc() + j]);
  }
}

TEST_P(ThinMatmul, RowsDoNotKnowEachOther) {
  const Case x{16, 21, 90};
  std::vector<float> together(16 * x.ldc());
  table().thin_matmul(x.product(together.data(), 1.0f, 0.0f), 0, 21);
  for (int64_t i = 0; i < 16; ++i) {
    std::vector<float> alone(static_cast<size_t>(x.ldc()));
    ThinProduct row = x.product(alone.data(), 1.0f, 0.0f);
    row.a += i * x.lda();
    row.m = 1;
    table().thin_matmul(row, 0, 21);
    for (int64_t j = 0; j < 21; ++j) EXPECT_EQ(alone[j], together[i * x.ldc() + j]) << i;
  }
}

}  // namespace
}  // namespace heddle::kernels
