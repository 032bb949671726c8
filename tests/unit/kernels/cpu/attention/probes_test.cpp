// Inputs whose results are known in closed form: one wrong key, head or row shows at once.
#include <vector>

#include "tests/unit/kernels/cpu/attention/attention_case.h"

namespace heddle::kernels::cpu::testing {
namespace {

struct Visible {
  int64_t first, count;
};
// Keys that query i of a bottom-right aligned causal problem sees.
Visible visible_keys(const Case& c, int64_t i) {
  const int64_t self = i + c.k_len - c.q_len;
  const int64_t last = std::min(self, c.k_len - 1);
  const int64_t first = c.window_left < 0 ? 0 : std::max<int64_t>(0, self - c.window_left);
  return {first, std::max<int64_t>(0, last - first + 1)};
}

std::vector<Case> probe_cases() {
  std::vector<Case> cases;
  for (const int64_t tokens : {1, 2, 63, 64, 65, 129, 300}) {
    for (const int64_t window : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{63},
                                 int64_t{64}, int64_t{65}, tokens - 1, tokens}) {
      Case c;
      c.q_len = c.k_len = tokens;
      c.window_left = window;
      cases.push_back(c);
    }
  }
  for (const auto& [q_len, k_len] :
       {std::pair{2, 5}, {5, 2}, {3, 7}, {1, 9}, {40, 104}, {256, 2}}) {
    for (const int64_t window : {-1, 2, 3, 20}) {
      Case c;
      c.q_len = q_len;
      c.k_len = k_len;
      c.window_left = window;
      cases.push_back(c.bottom_right());
    }
  }
  return cases;
}

template <class Check>
void on_every_isa(const Case& c, Check&& check) {
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    SCOPED_TRACE(attention_kernels(isa).isa);
    const Tensors t(c);
    check(attention_kernels(isa), t);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Keys all 0, values the key's number: the mean of the visible numbers, and ln of their count.
TEST(AttentionProbes, CountsKeys) {
  for (Case c : probe_cases()) {
    c.head_dim = 4;
    on_every_isa(c, [&](const AttentionKernels& kernels, const Tensors& t) {
      t.in.k.fill_with(0.0f);
      for (int64_t j = 0; j < c.k_len; ++j) {
        for (int64_t d = 0; d < c.head_dim; ++d) t.in.v.row(0, j, 0)[d] = static_cast<float>(j);
      }
      run_forward(kernels, problem_of(c, t), t);
      for (int64_t i = 0; i < c.q_len; ++i) {
        const Visible seen = visible_keys(c, i);
        const double mean =
            static_cast<double>(seen.first) + 0.5 * static_cast<double>(seen.count - 1);
        const double want = seen.count > 0 ? mean : 0.0;
        const double lse = std::log(static_cast<double>(seen.count));
        for (int64_t d = 0; d < c.head_dim; ++d) {
          ASSERT_NEAR(t.out.row(0, i, 0)[d], want, 1e-6 * std::max(1.0, want)) << "row " << i;
        }
        if (seen.count == 0) {
          ASSERT_EQ(t.lse.data()[i], -INFINITY) << "row " << i;
        } else {
          ASSERT_NEAR(t.lse.data()[i], lse, 1e-6 * std::max(1.0, lse)) << "row " << i;
        }
      }
    });
  }
}

// Value j is the unit vector j mod D: with a window below D, every visible key shows as 1/n in a
// place of its own, and every hidden one as an exact 0.
TEST(AttentionProbes, EveryKeyHasItsPlace) {
  for (Case c : probe_cases()) {
    c.head_dim = 128;
    if (c.window_left < 0 || c.window_left >= c.head_dim) c.window_left = 127;
    on_every_isa(c, [&](const AttentionKernels& kernels, const Tensors& t) {
      t.in.k.fill_with(0.0f);
      t.in.v.fill_with(0.0f);
      for (int64_t j = 0; j < c.k_len; ++j) t.in.v.row(0, j, 0)[j % c.head_dim] = 1.0f;
      run_forward(kernels, problem_of(c, t), t);
      for (int64_t i = 0; i < c.q_len; ++i) {
        const Visible seen = visible_keys(c, i);
        std::vector<float> want(static_cast<size_t>(c.head_dim), 0.0f);
        for (int64_t j = seen.first; j < seen.first + seen.count; ++j) {
          want[static_cast<size_t>(j % c.head_dim)] = 1.0f / static_cast<float>(seen.count);
        }
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const float got = t.out.row(0, i, 0)[d], expected = want[static_cast<size_t>(d)];
          if (expected == 0.0f) {
            ASSERT_EQ(got, 0.0f) << "row " << i << " d " << d;
          } else {
            ASSERT_NEAR(got, expected, 1e-6f) << "row " << i << " d " << d;
          }
        }
      }
    });
  }
}

// Values h + 1 in kv head h: query head n must return n / group + 1.
TEST(AttentionProbes, HeadsReadTheirGroup) {
  for (const int64_t n_kv_head : {1, 2, 3, 4}) {
    for (const int64_t group : {1, 2, 3, 5, 7}) {
      Case c;
      c.q_len = c.k_len = 33;
      c.n_kv_head = n_kv_head;
      c.n_head = n_kv_head * group;
      c.window_left = 17;
      on_every_isa(c, [&](const AttentionKernels& kernels, const Tensors& t) {
        t.in.k.fill_with(0.0f);
        for (int64_t j = 0; j < c.k_len; ++j) {
          for (int64_t h = 0; h < n_kv_head; ++h) {
            std::fill_n(t.in.v.row(0, j, h), c.head_dim, static_cast<float>(h + 1));
          }
        }
        run_forward(kernels, problem_of(c, t), t);
        for (int64_t i = 0; i < c.q_len; ++i) {
          for (int64_t h = 0; h < c.n_head; ++h) {
            const auto want = static_cast<double>(h / group + 1);
            ASSERT_NEAR(t.out.row(0, i, h)[0], want, 1e-6 * want) << "row " << i << " head " << h;
          }
        }
      });
    }
  }
}

// q = k = 0, dout = 1: dv[j] = group * sum of 1/n over the rows that see j; dq = dk = 0.
TEST(AttentionProbes, ValueGradientsSumOverRowsAndHeads) {
  for (Case c : probe_cases()) {
    c.n_kv_head = 2;
    c.n_head = 6;
    c.head_dim = 16;
    on_every_isa(c, [&](const AttentionKernels& kernels, const Tensors& t) {
      t.in.q.fill_with(0.0f);
      t.in.k.fill_with(0.0f);
      t.dout.fill_with(1.0f);
      run_forward(kernels, problem_of(c, t), t);
      run_backward(kernels, problem_of(c, t), t);
      std::vector<double> want(static_cast<size_t>(c.k_len), 0.0);
      for (int64_t i = 0; i < c.q_len; ++i) {
        const Visible seen = visible_keys(c, i);
        for (int64_t j = seen.first; j < seen.first + seen.count; ++j) {
          want[static_cast<size_t>(j)] += 3.0 / static_cast<double>(seen.count);
        }
      }
      const double most = *std::max_element(want.begin(), want.end());
      for (int64_t j = 0; j < c.k_len; ++j) {
        const double dv = want[static_cast<size_t>(j)];
        ASSERT_NEAR(t.grad.v.row(0, j, 1)[3], dv, 1e-6 * std::max(1.0, most)) << "key " << j;
        ASSERT_EQ(t.grad.k.row(0, j, 1)[3], 0.0f) << "key " << j;
      }
      for (const double x : t.grad.q.values()) ASSERT_EQ(x, 0.0);
    });
  }
}

TEST(AttentionProbes, ValueGradientsOfSixTokens) {
  Case c;
  c.q_len = c.k_len = 6;
  c.window_left = 2;
  c.n_head = 3;
  on_every_isa(c, [&](const AttentionKernels& kernels, const Tensors& t) {
    t.in.q.fill_with(0.0f);
    t.in.k.fill_with(0.0f);
    t.dout.fill_with(1.0f);
    run_forward(kernels, problem_of(c, t), t);
    run_backward(kernels, problem_of(c, t), t);
    const double want[] = {5.5, 3.5, 3.0, 3.0, 2.0, 1.0};
    for (int64_t j = 0; j < 6; ++j) ASSERT_NEAR(t.grad.v.row(0, j, 0)[0], want[j], 1e-5);
  });
}

// A query that sees one key only copies its value and has no score gradient at all.
TEST(AttentionProbes, OneKeyIsExact) {
  Case c;
  c.q_len = c.k_len = 70;
  c.window_left = 0;
  c.head_dim = 16;
  c.gain = 6.0f;
  on_every_isa(c, [&](const AttentionKernels& kernels, const Tensors& t) {
    run_forward(kernels, problem_of(c, t), t);
    run_backward(kernels, problem_of(c, t), t);
    EXPECT_EQ(t.out.values(), t.in.v.values());
    for (const double x : t.grad.q.values()) ASSERT_EQ(x, 0.0);
    for (const double x : t.grad.k.values()) ASSERT_EQ(x, 0.0);
  });
}

// Far rows of a long sequence with a short window; memory follows the window.
TEST(AttentionProbes, LongSequenceShortWindow) {
  Case c;
  c.q_len = c.k_len = 20000;
  c.window_left = 15;
  c.head_dim = 16;
  const AttentionKernels& kernels = attention_kernels(select_isa());
  const Tensors t(c);
  const AttentionProblem p = problem_of(c, t);
  t.in.k.fill_with(0.0f);
  t.in.v.fill_with(0.0f);
  for (int64_t j = 0; j < c.k_len; ++j) t.in.v.row(0, j, 0)[j % 16] = 1.0f;
  run_forward(kernels, p, t);
  for (int64_t i = c.q_len - 64; i < c.q_len; ++i) {
    for (int64_t d = 0; d < 16; ++d) ASSERT_NEAR(t.out.row(0, i, 0)[d], 1.0f / 16.0f, 1e-7f);
  }
  const size_t kv_bytes = 2 * 20000 * 16 * sizeof(float);
  EXPECT_LT(kernels.plan_forward(p).worker_bytes, size_t{1} << 20);
  const Launch backward = kernels.plan_backward(p);
  EXPECT_LT(backward.shared_bytes + backward.worker_bytes, kv_bytes + (size_t{1} << 20));
}

}  // namespace
}  // namespace heddle::kernels::cpu::testing
