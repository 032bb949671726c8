#include <atomic>

#include "tests/unit/framework/device/matmul_case.h"

namespace heddle::testing {
namespace {

class Matmul : public ::testing::Test {
 protected:
  ~Matmul() override { set_num_threads(0); }
  CpuOps ops_{kernels::ops_table_baseline()};
};

TEST_F(Matmul, TransposesShapesAndFactors) {
  check_products(ops_);
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
