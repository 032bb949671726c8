// Products of every table against double precision, and their bits when they are cut.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/cpu/ops/tables.h"

namespace heddle::kernels {
namespace {

class GemmKernel : public OnEveryTable {
 protected:
  std::vector<float> scratch_ = std::vector<float>(static_cast<size_t>(table().gemm_scratch));
};
HEDDLE_ON_EVERY_TABLE(GemmKernel);

struct Operands {
  Operands(int64_t rows, int64_t inner, int64_t cols, bool ta, bool tb)
      : m(rows), n(cols), k(inner), trans_a(ta), trans_b(tb) {
    lda = (ta ? m : k) + 3;
    ldb = (tb ? k : n) + 5;
    a = noise((ta ? k : m) * lda, "a");
    b = noise((tb ? n : k) * ldb, "b");
    c = noise(m * ldc(), "c");
  }
  int64_t ldc() const { return n + 2; }
  Gemm op(float* out, float alpha, float beta, float* scratch) const {
    return {a.data(), lda, trans_a, b.data(), ldb,   trans_b, out,
            ldc(),    m,   n,       k,        alpha, beta,    scratch};
  }
  double sum(int64_t i, int64_t j) const {
    double total = 0;
    for (int64_t l = 0; l < k; ++l) {
      total += static_cast<double>(trans_a ? a[l * lda + i] : a[i * lda + l]) *
               (trans_b ? b[j * ldb + l] : b[l * ldb + j]);
    }
    return total;
  }
  int64_t m, n, k, lda, ldb;
  bool trans_a, trans_b;
  std::vector<float> a, b, c;
};

void expect_product(const OpsTable& table, const Operands& x, float alpha, float beta,
                    float* scratch) {
  std::vector<float> c = x.c;
  if (beta == 0) std::fill(c.begin(), c.end(), NAN);
  table.gemm(x.op(c.data(), alpha, beta, scratch));
  double worst = 0;
  const double size = std::sqrt(static_cast<double>(x.k)) * std::fabs(alpha) + std::fabs(beta);
  for (int64_t i = 0; i < x.m; ++i) {
    for (int64_t j = 0; j < x.n; ++j) {
      const int64_t at = i * x.ldc() + j;
      const double want = alpha * x.sum(i, j) + (beta == 0 ? 0.0 : beta * x.c[at]);
      worst = std::fmax(worst, std::isnan(c[at]) ? 1e9 : std::fabs(c[at] - want));
    }
    for (int64_t j = x.n; j < x.ldc(); ++j) {  // nothing past a row's end
      const int64_t at = i * x.ldc() + j;
      ASSERT_TRUE(beta == 0 ? std::isnan(c[at]) : c[at] == x.c[at]) << i << " " << j;
    }
  }
  EXPECT_LT(worst, 4e-6 * size) << x.m << "x" << x.n << "x" << x.k << " " << x.trans_a << x.trans_b
                                << " beta " << beta;
}

TEST_P(GemmKernel, ShapesTransposesAndFactors) {
  // Tails of tiles, panels and vectors; several blocks of rows, pieces of the depth, slabs by
  // columns and by depth.
  const int64_t shapes[][3] = {{1, 1, 1},     {7, 13, 9},     {8, 400, 48},   {97, 385, 50},
                               {203, 17, 31}, {9, 400, 1500}, {10, 11000, 33}};
  for (const auto& s : shapes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const Operands x(s[0], s[1], s[2], (transposes & 1) != 0, (transposes & 2) != 0);
      expect_product(table(), x, 1.0f, 0.0f, scratch_.data());
      expect_product(table(), x, 1.0f, 1.0f, scratch_.data());
      expect_product(table(), x, -0.5f, 2.5f, scratch_.data());
    }
  }
}

TEST_P(GemmKernel, CutsChangeNoBit) {
  for (int transposes = 0; transposes < 4; ++transposes) {
    const Operands x(205, 500, 90, (transposes & 1) != 0, (transposes & 2) != 0);
    for (const float beta : {0.0f, 1.0f, 0.3f}) {
      std::vector<float> whole = x.c, cut = x.c;
      table().gemm(x.op(whole.data(), 1.1f, beta, scratch_.data()));
      for (int64_t i = 0; i < x.m; i += 41) {
        for (int64_t j = 0; j < x.n; j += 37) {
          Gemm part = x.op(cut.data() + i * x.ldc() + j, 1.1f, beta, scratch_.data());
          part.a += x.trans_a ? i : i * x.lda;
          part.b += x.trans_b ? j * x.ldb : j;
          part.m = std::min<int64_t>(41, x.m - i);
          part.n = std::min<int64_t>(37, x.n - j);
          table().gemm(part);
        }
      }
      EXPECT_EQ(whole, cut) << x.trans_a << x.trans_b << " beta " << beta;
    }
  }
}

}  // namespace
}  // namespace heddle::kernels
