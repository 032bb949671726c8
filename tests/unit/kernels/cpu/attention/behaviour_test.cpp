// Bits, NaN, ring pieces and the choice of instructions.
#include <cstdlib>
#include <cstring>
#include <limits>

#include "tests/unit/kernels/cpu/attention/attention_case.h"

namespace heddle::kernels::cpu::testing {
namespace {

std::vector<Case> varied_cases() {
  std::vector<Case> cases;
  Case c;
  c.q_len = c.k_len = 700;
  c.n_head = 6;
  c.n_kv_head = 2;
  c.head_dim = 20;
  cases.push_back(c);
  c.window_left = 100;
  cases.push_back(c);
  c.n_kv_head = 1;  // few pairs: chunks and a second phase
  cases.push_back(c);
  c.batch = 9;  // many pairs: one phase
  c.q_len = c.k_len = 150;
  c.n_kv_head = 2;
  cases.push_back(c);
  return cases;
}

TEST(AttentionBehaviour, OrderOfTasksDoesNotMatter) {
  for (const Case& c : varied_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    for (const Isa isa : available_isas()) {
      const AttentionKernels& kernels = attention_kernels(isa);
      const Tensors a(c), b(c);
      const AttentionProblem p = problem_of(c, a);
      run_forward(kernels, p, a);
      run_forward(kernels, p, b, true);
      EXPECT_EQ(a.out.values(), b.out.values());
      run_backward(kernels, p, a);
      run_backward(kernels, p, b, true);
      EXPECT_EQ(a.grad.q.values(), b.grad.q.values());
      EXPECT_EQ(a.grad.k.values(), b.grad.k.values());
      EXPECT_EQ(a.grad.v.values(), b.grad.v.values());
    }
  }
}

// Every task writes its own part of the result, and together they write all of it.
TEST(AttentionBehaviour, TasksCoverTheResultOnce) {
  for (const Case& c : varied_cases()) {
    const AttentionKernels& kernels = attention_kernels(select_isa());
    const Tensors t(c);
    const AttentionProblem p = problem_of(c, t);
    const Launch launch = kernels.plan_forward(p);
    std::vector<char> area(launch.worker_bytes + 64);
    void* aligned = area.data() + 64 - reinterpret_cast<uintptr_t>(area.data()) % 64;
    std::vector<int> written(t.out.values().size(), 0);
    for (int64_t task = 0; task < launch.tasks[0]; ++task) {
      t.out.buffer->poison();
      kernels.run_forward(p, {t.in.q.data, t.in.k.data, t.in.v.data, t.out.data, nullptr},
                          {0, task, nullptr, aligned});
      t.out.for_each([&](const float& x, uint32_t n) { written[n] += !std::isnan(x); });
    }
    for (const int times : written) ASSERT_EQ(times, 1);
  }
}

TEST(AttentionBehaviour, NanReachesExactlyTheRowsThatSeeIt) {
  Case c;
  c.q_len = c.k_len = 200;
  c.window_left = 50;
  c.n_head = 2;
  c.head_dim = 16;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(attention_kernels(isa).isa);
    for (const int64_t bad : {0, 77, 199}) {
      const Tensors q_bad(c), k_bad(c), v_bad(c);
      q_bad.in.q.row(0, bad, 1)[3] = nan;
      k_bad.in.k.row(0, bad, 0)[3] = nan;
      v_bad.in.v.row(0, bad, 0)[3] = nan;
      for (const Tensors* t : {&q_bad, &k_bad, &v_bad}) {
        run_forward(attention_kernels(isa), problem_of(c, *t), *t);
        for (int64_t i = 0; i < c.q_len; ++i) {
          const bool sees = t == &q_bad ? i == bad : i >= bad && i <= bad + c.window_left;
          if (sees) {
            ASSERT_TRUE(std::isnan(t->out.row(0, i, 1)[3])) << "row " << i << " bad " << bad;
          }
          // A panel of queries shares its keys: rows nearer than its width are unspecified.
          const bool far = i < bad - 64 || i > bad + c.window_left + 64;
          if (far) {
            ASSERT_FALSE(std::isnan(t->out.row(0, i, 1)[3])) << "row " << i << " bad " << bad;
          }
        }
      }
    }
  }
}

// Two blocks of keys, each attended by itself, merge to the whole; backward per block with the
// merged out and lse gives the whole's gradients. This is how a context is split over ranks.
TEST(AttentionBehaviour, PiecesOfTheKeysAddUp) {
  Case whole;
  whole.q_len = whole.k_len = 120;
  whole.window_left = 70;
  whole.n_head = 2;
  whole.head_dim = 12;
  const AttentionKernels& kernels = attention_kernels(select_isa());
  const Tensors t(whole);
  const AttentionProblem p = problem_of(whole, t);
  const Expected want(whole, p, t);
  run_forward(kernels, p, t);

  std::vector<double> dq(want.dq.size(), 0.0);
  for (const auto& [first, last] : {std::pair{0, 50}, {50, 120}}) {
    Case piece = whole;
    piece.k_len = last - first;
    piece.k_pos0 = first;
    const Tensors part(piece);
    for (int64_t j = first; j < last; ++j) {
      for (int64_t d = 0; d < whole.head_dim; ++d) {
        part.in.k.row(0, j - first, 0)[d] = t.in.k.row(0, j, 0)[d];
        part.in.v.row(0, j - first, 0)[d] = t.in.v.row(0, j, 0)[d];
      }
    }
    std::memcpy(part.out.data, t.out.data, want.out.size() * sizeof(float));
    std::memcpy(part.lse.data(), t.lse.data(), want.lse.size() * sizeof(float));
    run_backward(kernels, problem_of(piece, part), part);
    const std::vector<double> part_dq = part.grad.q.values();
    for (size_t i = 0; i < dq.size(); ++i) dq[i] += part_dq[i];
    const auto begin = static_cast<std::ptrdiff_t>(first * whole.head_dim);
    const auto end = static_cast<std::ptrdiff_t>(last * whole.head_dim);
    expect_close("dk", part.grad.k, {want.dk.begin() + begin, want.dk.begin() + end}, 1e-5, 3e-5);
    expect_close("dv", part.grad.v, {want.dv.begin() + begin, want.dv.begin() + end}, 1e-5, 3e-5);
  }
  for (size_t i = 0; i < dq.size(); ++i) ASSERT_NEAR(dq[i], want.dq[i], 3e-5);
}

TEST(AttentionBehaviour, LseIsOptional) {
  Case c;
  c.q_len = c.k_len = 40;
  const Tensors with(c), without(c);
  const AttentionKernels& kernels = attention_kernels(select_isa());
  const AttentionProblem p = problem_of(c, with);
  run_forward(kernels, p, with);
  run(kernels.plan_forward(p), p,
      ForwardArgs{without.in.q.data, without.in.k.data, without.in.v.data, without.out.data,
                  nullptr},
      kernels.run_forward);
  EXPECT_EQ(with.out.values(), without.out.values());
}

// One heavy last tile must not come last: costs fall along the task numbers of a causal problem.
TEST(AttentionBehaviour, HeaviestTasksComeFirst) {
  Case c;
  c.q_len = c.k_len = 1024;
  const Tensors t(c);
  const AttentionProblem p = problem_of(c, t);
  const AttentionKernels& kernels = attention_kernels(select_isa());
  const Launch launch = kernels.plan_forward(p);
  ASSERT_GE(launch.tasks[0], 4);
  std::vector<char> area(launch.worker_bytes + 64);
  void* aligned = area.data() + 64 - reinterpret_cast<uintptr_t>(area.data()) % 64;
  t.out.buffer->poison();
  kernels.run_forward(p, {t.in.q.data, t.in.k.data, t.in.v.data, t.out.data, nullptr},
                      {0, 0, nullptr, aligned});
  EXPECT_FALSE(std::isnan(t.out.row(0, 1023, 0)[0]));
  EXPECT_TRUE(std::isnan(t.out.row(0, 0, 0)[0]));
}

class CpuIsa : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("HEDDLE_CPU_ISA"); }
};

TEST_F(CpuIsa, EnvironmentChooses) {
  const char* refused = nullptr;
  setenv("HEDDLE_CPU_ISA", "baseline", 1);
  EXPECT_EQ(select_isa(&refused), Isa::kBaseline);
  EXPECT_EQ(refused, nullptr);
  for (const Isa isa : available_isas()) {
    setenv("HEDDLE_CPU_ISA", attention_kernels(isa).isa, 1);
    EXPECT_EQ(select_isa(&refused), isa);
    EXPECT_EQ(refused, nullptr);
  }
}

TEST_F(CpuIsa, UnknownNameFallsBackAndIsReported) {
  const char* refused = nullptr;
  unsetenv("HEDDLE_CPU_ISA");
  const Isa best = select_isa(&refused);
  EXPECT_EQ(refused, nullptr);
  setenv("HEDDLE_CPU_ISA", "avx1024", 1);
  EXPECT_EQ(select_isa(&refused), best);
  EXPECT_STREQ(refused, "avx1024");
}

}  // namespace
}  // namespace heddle::kernels::cpu::testing
