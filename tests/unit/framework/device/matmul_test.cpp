#include <atomic>

#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class Matmul : public ::testing::Test {
 protected:
  ~Matmul() override { set_num_threads(0); }
  CpuOps ops_{kernels::ops_table_baseline()};
};

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

void check(Ops& ops, const Product& p) {
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

TEST_F(Matmul, TransposesShapesAndFactors) {
  const int64_t shapes[][3] = {{1, 1, 1},     {2, 12, 2},    {3, 5, 7},
                               {1, 200, 65},  {8, 100, 64},  {17, 33, 65},
                               {48, 48, 300}, {130, 70, 96}, {257, 64, 31}};
  for (const auto& s : shapes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const bool ta = (transposes & 1) != 0, tb = (transposes & 2) != 0;
      check(ops_, {s[0], s[1], s[2], ta, tb, 1.0f, 0.0f});
      check(ops_, {s[0], s[1], s[2], ta, tb, 1.0f, 1.0f});
      check(ops_, {s[0], s[1], s[2], ta, tb, -0.5f, 2.5f});
    }
  }
}

TEST_F(Matmul, NumberOfThreadsDoesNotMatter) {
  struct {
    int64_t m, n, k;
    bool trans_a, trans_b;
  } const shapes[] = {{200, 96, 130, false, true}, {200, 130, 96, false, false},
                      {96, 130, 700, true, false}, {64, 900, 48, false, true},
                      {900, 48, 64, true, false},  {5, 300, 70, false, true}};
  for (const auto& s : shapes) {
    const Operand a = s.trans_a ? Operand(s.k, s.m, "a") : Operand(s.m, s.k, "a");
    const Operand b = s.trans_b ? Operand(s.n, s.k, "b") : Operand(s.k, s.n, "b");
    Floats first;
    for (int threads : {1, 2, 3}) {
      set_num_threads(threads);
      Operand c(s.m, s.n, "c");
      ops_.matmul(a.view, s.trans_a, b.view, s.trans_b, c.view, 1.0f, 1.0f);
      if (threads == 1) first = c.data;
      EXPECT_EQ(c.data, first) << s.m << "x" << s.n << "x" << s.k << " on " << threads;
    }
  }
}

TEST_F(Matmul, IndependentProductsEachOnOneWorker) {
  constexpr int64_t kCount = 13, kSide = 40;
  const Operand a(kSide, kSide, "a"), b(kSide, kSide, "b");
  Operand alone(kSide, kSide, "c");
  set_num_threads(1);
  ops_.matmul(a.view, false, b.view, true, alone.view, 1.0f, 0.0f);
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<Operand> c(kCount, Operand(kSide, kSide, "c"));
    std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
    std::atomic<int> done{0};
    ops_.run_independent(kCount, [&](int64_t i, int worker) {
      EXPECT_LT(worker, ops_.workers());
      EXPECT_EQ(busy[static_cast<size_t>(worker)]++, 0);
      Matrix out = c[static_cast<size_t>(i)].view;
      out.data = c[static_cast<size_t>(i)].data.data();
      ops_.matmul(a.view, false, b.view, true, out, 1.0f, 0.0f);
      ++done;
      --busy[static_cast<size_t>(worker)];
    });
    EXPECT_EQ(done, kCount);
    for (const auto& result : c) EXPECT_EQ(result.data, alone.data);
  }
}

}  // namespace
}  // namespace heddle::testing
