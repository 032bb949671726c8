// Results do not depend on how ranges are cut (rows anywhere, elements at multiples of kCut), and
// nothing past a range is touched.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/cpu/ops/tables.h"

namespace heddle::kernels {
namespace {

class Ranges : public OnEveryTable {};
HEDDLE_ON_EVERY_TABLE(Ranges);

TEST_P(Ranges, ElementsCutAtMultiples) {
  constexpr int64_t kN = 5 * kCut + 203;
  const auto grad = noise(kN, "grad");
  const AdamW op{0.8f, 0.95f, 1e-10f, 0.999f, 0.01f, 1.3f, 0.5f};
  std::vector<float> p = noise(kN, "p"), m = noise(kN, "m"), v(kN, 0.5f);
  auto p2 = p, m2 = m, v2 = v;
  table().adamw(op, grad.data(), p.data(), m.data(), v.data(), kN);
  for (int64_t at = 0, width = kCut; at < kN; at += width, width = 2 * kCut) {
    const int64_t n = std::min(width, kN - at);
    table().adamw(op, grad.data() + at, p2.data() + at, m2.data() + at, v2.data() + at, n);
  }
  EXPECT_EQ(p, p2);
  EXPECT_EQ(m, m2);
  EXPECT_EQ(v, v2);
}

TEST_P(Ranges, NothingPastTheEnd) {
  for (int64_t n = 0; n <= 40; ++n) {
    std::vector<float> x(64, -3.0f), y(64, -3.0f);
    table().relu2_forward(x.data(), n);
    table().softcap(y.data(), 15.0f, n);
    for (int64_t i = n; i < 64; ++i) {
      ASSERT_EQ(x[i], -3.0f) << n;
      ASSERT_EQ(y[i], -3.0f) << n;
    }
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(x[i], 0.0f);
  }
}

TEST_P(Ranges, RowsCutAnywhere) {
  constexpr int64_t kRows = 11, kVocab = 77, kLd = 80;
  const auto logits = noise(kRows * kLd, "logits", 5.0f);
  std::vector<int32_t> targets(kRows);
  for (int64_t i = 0; i < kRows; ++i) targets[i] = static_cast<int32_t>(i * 7 % kVocab);
  auto a = logits, b = logits;
  std::vector<float> loss_a(kRows), loss_b(kRows);
  LossRows op{a.data(), kLd, kVocab, 15.0f, targets.data(), true, loss_a.data(), nullptr};
  table().loss_rows(op, 0, kRows);
  op.z = b.data();
  op.loss = loss_b.data();
  for (int64_t i = kRows - 1; i >= 0; --i) table().loss_rows(op, i, i + 1);
  EXPECT_EQ(a, b);
  EXPECT_EQ(loss_a, loss_b);
  for (int64_t n = 0; n < kRows; ++n) {  // columns past the vocabulary stay
    for (int64_t c = kVocab; c < kLd; ++c) EXPECT_EQ(a[n * kLd + c], logits[n * kLd + c]);
  }
}

TEST_P(Ranges, ColumnSquaresInStrips) {
  constexpr int64_t kRows = 150, kCols = 131;
  const auto x = noise(kRows * kCols, "x");
  std::vector<double> whole(kCols), parts(kCols);
  table().col_squares(x.data(), kRows, kCols, 0, kCols, whole.data());
  table().col_squares(x.data(), kRows, kCols, 64, kCols, parts.data());
  table().col_squares(x.data(), kRows, kCols, 0, 64, parts.data());
  EXPECT_EQ(whole, parts);
  for (int64_t c = 0; c < kCols; ++c) {
    double want = 0;
    for (int64_t r = 0; r < kRows; ++r)
      want += static_cast<double>(x[r * kCols + c]) * x[r * kCols + c];
    EXPECT_NEAR(whole[c], want, 1e-6 * want);
  }
}

}  // namespace
}  // namespace heddle::kernels
