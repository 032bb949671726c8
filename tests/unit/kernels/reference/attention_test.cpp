// The oracle against numbers it did not make: golden data, hand-worked values, finite differences.
#include "kernels/reference/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/support/golden_attention.h"

namespace heddle::kernels::reference {
namespace {

AttentionShape shape_of(const heddle::testing::GoldenAttention& g) {
  AttentionShape s;
  s.batch = g.batch;
  s.q_len = g.q_len;
  s.k_len = g.k_len;
  s.n_head = g.n_head;
  s.n_kv_head = g.n_kv_head;
  s.head_dim = g.head_dim;
  s.scale = g.scale;
  s.window_left = g.window_left;
  s.q_pos0 = g.q_pos0;
  s.k_pos0 = g.k_pos0;
  return s;
}

TEST(ReferenceAttention, Golden) {
  for (const auto& g : heddle::testing::load_golden_attention()) {
    SCOPED_TRACE(g.name);
    const Strides queries = contiguous(g.q_len, g.n_head, g.head_dim);
    const Strides keys = contiguous(g.k_len, g.n_kv_head, g.head_dim);
    std::vector<float> out(g.out.size()), lse(g.lse.size());
    std::vector<float> dq(g.dq.size()), dk(g.dk.size()), dv(g.dv.size());
    attention_forward<float>(shape_of(g), {g.q.data(), queries}, {g.k.data(), keys},
                             {g.v.data(), keys}, {out.data(), queries}, lse.data());
    attention_backward<float>(shape_of(g), {g.q.data(), queries}, {g.k.data(), keys},
                              {g.v.data(), keys}, {g.dout.data(), queries}, {dq.data(), queries},
                              {dk.data(), keys}, {dv.data(), keys});
    heddle::testing::expect_golden("out", out, g.out);
    heddle::testing::expect_golden_lse(lse, g.lse);
    heddle::testing::expect_golden("dq", dq, g.dq);
    heddle::testing::expect_golden("dk", dk, g.dk);
    heddle::testing::expect_golden("dv", dv, g.dv);
  }
}

// One head, keys 0 and values 0, 1, 2, ...: mean and count of the visible keys.
struct Count {
  std::vector<double> out, lse;
};
Count count(int64_t q_len, int64_t k_len, int64_t window) {
  AttentionShape s;
  s.q_len = q_len;
  s.k_len = k_len;
  s.window_left = window;
  s.q_pos0 = k_len - q_len;
  const std::vector<double> q(static_cast<size_t>(q_len), 1.0), k(static_cast<size_t>(k_len), 0.0);
  std::vector<double> v(k.size());
  for (size_t j = 0; j < v.size(); ++j) v[j] = static_cast<double>(j);
  Count c{std::vector<double>(q.size()), std::vector<double>(q.size())};
  const Strides queries = contiguous(q_len, 1, 1), keys = contiguous(k_len, 1, 1);
  attention_forward<double>(s, {q.data(), queries}, {k.data(), keys}, {v.data(), keys},
                            {c.out.data(), queries}, c.lse.data());
  return c;
}

void expect_count(const Count& got, const std::vector<double>& out, const std::vector<int>& keys) {
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(got.out[i], out[i], 1e-12) << i;
    if (keys[i] == 0) {
      EXPECT_EQ(got.lse[i], -std::numeric_limits<double>::infinity()) << i;
    } else {
      EXPECT_NEAR(got.lse[i], std::log(keys[i]), 1e-12) << i;
    }
  }
}

TEST(ReferenceAttention, CountsByHand) {
  expect_count(count(2, 5, -1), {1.5, 2.0}, {4, 5});
  expect_count(count(5, 2, -1), {0, 0, 0, 0, 0.5}, {0, 0, 0, 1, 2});
  expect_count(count(3, 7, 2), {3, 4, 5}, {3, 3, 3});
  expect_count(count(1, 9, 3), {6.5}, {4});
  expect_count(count(8, 8, 2), {0, 0.5, 1, 2, 3, 4, 5, 6}, {1, 2, 3, 3, 3, 3, 3, 3});
}

TEST(ReferenceAttention, ValueGradientsByHand) {
  AttentionShape s;
  s.q_len = s.k_len = 6;
  s.n_head = 3;
  s.window_left = 2;
  const std::vector<double> zeros(18, 0.0), ones(18, 1.0), v{1, 2, 3, 4, 5, 6};
  std::vector<double> dq(18), dk(6), dv(6);
  const Strides queries = contiguous(6, 3, 1), keys = contiguous(6, 1, 1);
  attention_backward<double>(s, {zeros.data(), queries}, {zeros.data(), keys}, {v.data(), keys},
                             {ones.data(), queries}, {dq.data(), queries}, {dk.data(), keys},
                             {dv.data(), keys});
  const double want[] = {5.5, 3.5, 3.0, 3.0, 2.0, 1.0};
  for (size_t j = 0; j < 6; ++j) EXPECT_NEAR(dv[j], want[j], 1e-12);
}

// d/dx of sum(out * dout) by central differences, for every element of q, k and v.
TEST(ReferenceAttention, GradientsAreDerivatives) {
  AttentionShape s;
  s.batch = 2;
  s.q_len = 5;
  s.k_len = 6;
  s.n_head = 4;
  s.n_kv_head = 2;
  s.head_dim = 3;
  s.scale = 0.7;
  s.window_left = 3;
  s.q_pos0 = 4;
  s.k_pos0 = 2;
  const Strides queries = contiguous(5, 4, 3), keys = contiguous(6, 2, 3);
  const auto wave = [](size_t n, double phase) {
    std::vector<double> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = std::sin(1.7 * static_cast<double>(i) + phase);
    return x;
  };
  std::vector<double> q = wave(120, 0.1), k = wave(72, 0.2), v = wave(72, 0.3);
  const std::vector<double> dout = wave(120, 0.4);
  std::vector<double> dq(120), dk(72), dv(72);
  attention_backward<double>(s, {q.data(), queries}, {k.data(), keys}, {v.data(), keys},
                             {dout.data(), queries}, {dq.data(), queries}, {dk.data(), keys},
                             {dv.data(), keys});
  const auto loss = [&] {
    std::vector<double> out(120);
    attention_forward<double>(s, {q.data(), queries}, {k.data(), keys}, {v.data(), keys},
                              {out.data(), queries}, static_cast<double*>(nullptr));
    double sum = 0.0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  const auto check = [&](const char* name, std::vector<double>& x, const std::vector<double>& dx) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double kept = x[i], step = 1e-5;
      x[i] = kept + step;
      const double up = loss();
      x[i] = kept - step;
      const double down = loss();
      x[i] = kept;
      ASSERT_NEAR(dx[i], (up - down) / (2 * step), 1e-9) << name << ' ' << i;
    }
  };
  check("dq", q, dq);
  check("dk", k, dk);
  check("dv", v, dv);
}

TEST(ReferenceAttention, NanReachesTheRowsThatSeeIt) {
  AttentionShape s;
  s.q_len = s.k_len = 6;
  s.window_left = 2;
  std::vector<double> q(6, 1.0), k(6, 0.5), v(6, 2.0), out(6), lse(6);
  k[2] = std::numeric_limits<double>::quiet_NaN();
  const Strides rows = contiguous(6, 1, 1);
  attention_forward<double>(s, {q.data(), rows}, {k.data(), rows}, {v.data(), rows},
                            {out.data(), rows}, lse.data());
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::isnan(out[i]), i >= 2 && i <= 4) << i;
    EXPECT_EQ(std::isnan(lse[i]), i >= 2 && i <= 4) << i;
  }
}

TEST(ReferenceAttention, DecodeReadsOnlyValidRows) {
  AttentionShape s;
  s.batch = 2;
  s.q_len = 1;
  s.k_len = 4;  // capacity
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> q(2, 1.0), k{0, 0, nan, nan, 0, 0, 0, nan};
  const std::vector<double> v{1, 3, nan, nan, 1, 3, 8, nan};
  const int32_t kv_len[] = {2, 3};
  std::vector<double> out(2), lse(2);
  const Strides queries = contiguous(1, 1, 1), cache = contiguous(4, 1, 1);
  attention_decode<double>(s, {q.data(), queries}, {k.data(), cache}, {v.data(), cache}, kv_len,
                           {out.data(), queries}, lse.data());
  EXPECT_NEAR(out[0], 2.0, 1e-12);
  EXPECT_NEAR(out[1], 4.0, 1e-12);
  EXPECT_NEAR(lse[1], std::log(3.0), 1e-12);
}

}  // namespace
}  // namespace heddle::kernels::reference
