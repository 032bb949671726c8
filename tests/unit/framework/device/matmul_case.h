// Products of padded matrices against double precision.
#pragma once

#include "tests/unit/framework/device/support.h"

namespace heddle::testing {

struct Product {
  int64_t m, n, k;
  bool trans_a, trans_b;
  float alpha, beta;
};

struct Operand {
  Operand(int64_t rows, int64_t cols, const std::string& name)
      : ld(cols + 3),
        data(noise(rows * ld, name)),
        view{data.data(), rows, cols, ld, DType::kF32} {}
  int64_t ld;
  Floats data;
  Matrix view;
  double at(int64_t i, int64_t j, bool trans) const {
    return trans ? data[j * ld + i] : data[i * ld + j];
  }
};

inline void check(Ops& ops, const Product& p) {
  const Operand a = p.trans_a ? Operand(p.k, p.m, "a") : Operand(p.m, p.k, "a");
  const Operand b = p.trans_b ? Operand(p.n, p.k, "b") : Operand(p.k, p.n, "b");
  Operand c(p.m, p.n, "c");
  const Floats before = c.data;
  if (p.beta == 0) {  // whatever was there must not matter
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) c.data[i * c.ld + j] = NAN;
    }
  }
  Doubles want = widen(before);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l) sum += a.at(i, l, p.trans_a) * b.at(l, j, p.trans_b);
      want[i * c.ld + j] = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * before[i * c.ld + j]);
    }
  }
  ops.matmul(a.view, p.trans_a, b.view, p.trans_b, c.view, p.alpha, p.beta);
  EXPECT_LT(relative_error(c.data, want), 1e-6)
      << p.m << "x" << p.n << "x" << p.k << " " << p.trans_a << p.trans_b;
}

inline void check_products(Ops& ops) {
  const int64_t shapes[][3] = {{1, 1, 1},     {2, 12, 2},   {3, 5, 7},     {1, 200, 65},
                               {8, 100, 64},  {17, 33, 65}, {48, 48, 300}, {130, 70, 96},
                               {257, 64, 31}, {19, 4, 8200}};
  for (const auto& s : shapes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const bool ta = (transposes & 1) != 0, tb = (transposes & 2) != 0;
      check(ops, {s[0], s[1], s[2], ta, tb, 1.0f, 0.0f});
      check(ops, {s[0], s[1], s[2], ta, tb, 1.0f, 1.0f});
      check(ops, {s[0], s[1], s[2], ta, tb, -0.5f, 2.5f});
    }
  }
}

}  // namespace heddle::testing
