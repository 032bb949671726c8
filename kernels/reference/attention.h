// Attention by its definition: the oracle that kernels, plugins and probes are compared with.
//
//   s(i,j)   = scale * sum_d q(i,d) k(j,d)          for visible (i,j)
//   lse(i)   = ln sum_j exp(s(i,j))                 natural logarithm
//   p(i,j)   = exp(s(i,j) - lse(i))
//   out(i,d) = sum_j p(i,j) v(j,d)
// backward, with dout given:
//   delta(i)  = sum_d out(i,d) dout(i,d)
//   dp(i,j)   = sum_d dout(i,d) v(j,d)
//   ds(i,j)   = p(i,j) (dp(i,j) - delta(i))
//   dq(i,d)   = scale * sum_j ds(i,j) k(j,d)
//   dk(j,d)   = scale * sum_i ds(i,j) q(i,d)        summed over the query heads of the group
//   dv(j,d)   = sum_i p(i,j) dout(i,d)              likewise
//
// Key j is visible to query i when (not causal or kp <= qp) and (window_left < 0 or
// qp - kp <= window_left) with qp = q_pos0 + i, kp = k_pos0 + j. A query that sees nothing gives
// out 0, lse -inf, dq 0 and adds nothing to dk and dv. Keys that no query sees get dk = dv = 0.
// Query head h reads kv head h / (n_head / n_kv_head).
//
// Inputs are T, sums are Acc (double). Nothing is shared with the kernels' tile arithmetic on
// purpose: every pair is tested by itself. Cost: q_len * k_len * head_dim per head.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace heddle::kernels::reference {

// Element (b, t, h, d) lies at b*batch + t*token + h*head + d.
struct Strides {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;
};

// Strides of a contiguous (B, T, heads, D) tensor.
inline Strides contiguous(int64_t tokens, int64_t heads, int64_t dim) {
  return {tokens * heads * dim, heads * dim, dim};
}

template <typename T>
struct View {
  T* data = nullptr;
  Strides strides;

  T* row(int64_t b, int64_t t, int64_t h) const {
    return data + b * strides.batch + t * strides.token + h * strides.head;
  }
};

struct AttentionShape {
  int64_t batch = 1;
  int64_t q_len = 0;
  int64_t k_len = 0;
  int64_t n_head = 1;
  int64_t n_kv_head = 1;
  int64_t head_dim = 1;
  double scale = 1.0;
  bool causal = true;
  int64_t window_left = -1;
  int64_t q_pos0 = 0;
  int64_t k_pos0 = 0;
};

inline bool visible(const AttentionShape& shape, int64_t query_position, int64_t key_position) {
  if (shape.causal && key_position > query_position) return false;
  return shape.window_left < 0 || query_position - key_position <= shape.window_left;
}

namespace detail {

template <typename Acc, typename T>
Acc dot(const T* a, const T* b, int64_t n) {
  Acc sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += static_cast<Acc>(a[d]) * static_cast<Acc>(b[d]);
  return sum;
}

// Scores of one query against keys [0, k_len): -inf where hidden. Returns the row's lse.
template <typename Acc, typename T>
Acc score_row(const AttentionShape& s, const T* q, const View<const T>& k, int64_t b, int64_t kv,
              int64_t query_position, int64_t k_len, std::vector<Acc>& scores) {
  constexpr Acc kHidden = -std::numeric_limits<Acc>::infinity();
  Acc top = kHidden;
  bool sees_any = false;
  scores.assign(static_cast<size_t>(k_len), kHidden);
  for (int64_t j = 0; j < k_len; ++j) {
    if (!visible(s, query_position, s.k_pos0 + j)) continue;
    const Acc score = static_cast<Acc>(s.scale) * dot<Acc>(q, k.row(b, j, kv), s.head_dim);
    scores[static_cast<size_t>(j)] = score;
    sees_any = true;  // a NaN score is not greater than anything, yet must reach the sum
    if (score > top) top = score;
  }
  if (!sees_any) return kHidden;
  Acc sum = 0;
  for (const Acc score : scores) {
    if (score != kHidden) sum += std::exp(score - top);
  }
  return top + std::log(sum);
}

template <typename Acc, typename T>
void attend_row(const AttentionShape& s, const T* q, const View<const T>& k, const View<const T>& v,
                int64_t b, int64_t kv, int64_t query_position, int64_t k_len, T* out, Acc* lse) {
  std::vector<Acc> scores;
  *lse = score_row(s, q, k, b, kv, query_position, k_len, scores);
  std::vector<Acc> sum(static_cast<size_t>(s.head_dim), Acc{0});
  for (int64_t j = 0; j < k_len; ++j) {
    const Acc score = scores[static_cast<size_t>(j)];
    if (score == -std::numeric_limits<Acc>::infinity()) continue;
    const Acc p = std::exp(score - *lse);
    const T* value = v.row(b, j, kv);
    for (int64_t d = 0; d < s.head_dim; ++d) sum[static_cast<size_t>(d)] += p * value[d];
  }
  for (int64_t d = 0; d < s.head_dim; ++d) out[d] = static_cast<T>(sum[static_cast<size_t>(d)]);
}

// Writes dq of one query and adds its share to dk and dv of its kv head, both (k_len, D).
template <typename Acc, typename T>
void backward_row(const AttentionShape& s, const T* q, const View<const T>& k,
                  const View<const T>& v, const T* dout, int64_t b, int64_t kv,
                  int64_t query_position, T* dq, std::vector<Acc>& dk, std::vector<Acc>& dv) {
  std::vector<Acc> p, dp(static_cast<size_t>(s.k_len), Acc{0});
  const Acc lse = score_row(s, q, k, b, kv, query_position, s.k_len, p);
  Acc delta = 0;  // sum_j p dp equals sum_d out dout
  for (int64_t j = 0; j < s.k_len; ++j) {
    const auto n = static_cast<size_t>(j);
    if (p[n] == -std::numeric_limits<Acc>::infinity()) {
      p[n] = 0;
      continue;
    }
    p[n] = std::exp(p[n] - lse);
    dp[n] = dot<Acc>(dout, v.row(b, j, kv), s.head_dim);
    delta += p[n] * dp[n];
  }
  std::vector<Acc> dq_sum(static_cast<size_t>(s.head_dim), Acc{0});
  for (int64_t j = 0; j < s.k_len; ++j) {
    const auto n = static_cast<size_t>(j);
    if (p[n] == 0) continue;
    const Acc ds = p[n] * (dp[n] - delta) * static_cast<Acc>(s.scale);
    const T* key = k.row(b, j, kv);
    for (int64_t d = 0; d < s.head_dim; ++d) {
      dq_sum[static_cast<size_t>(d)] += ds * key[d];
      dk[static_cast<size_t>(j * s.head_dim + d)] += ds * q[d];
      dv[static_cast<size_t>(j * s.head_dim + d)] += p[n] * dout[d];
    }
  }
  for (int64_t d = 0; d < s.head_dim; ++d) dq[d] = static_cast<T>(dq_sum[static_cast<size_t>(d)]);
}

}  // namespace detail

// q, out: (B, q_len, H, D); k, v: (B, k_len, K, D); lse: (B, H, q_len) contiguous, may be null.
template <typename T, typename Acc = double, typename Lse = T>
void attention_forward(const AttentionShape& s, View<const T> q, View<const T> k, View<const T> v,
                       View<T> out, Lse* lse) {
  const int64_t group = s.n_head / s.n_kv_head;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.n_head; ++h) {
      for (int64_t i = 0; i < s.q_len; ++i) {
        Acc row_lse = 0;
        detail::attend_row<Acc, T>(s, q.row(b, i, h), k, v, b, h / group, s.q_pos0 + i, s.k_len,
                                   out.row(b, i, h), &row_lse);
        if (lse) lse[(b * s.n_head + h) * s.q_len + i] = static_cast<Lse>(row_lse);
      }
    }
  }
}

// Gradients from the inputs alone: the row's probabilities and its output are recomputed in Acc.
// dq: (B, q_len, H, D); dk, dv: (B, k_len, K, D); all are overwritten.
template <typename T, typename Acc = double>
void attention_backward(const AttentionShape& s, View<const T> q, View<const T> k, View<const T> v,
                        View<const T> dout, View<T> dq, View<T> dk, View<T> dv) {
  const int64_t group = s.n_head / s.n_kv_head;
  const auto size = static_cast<size_t>(s.k_len * s.head_dim);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t kv = 0; kv < s.n_kv_head; ++kv) {
      std::vector<Acc> dk_sum(size, Acc{0}), dv_sum(size, Acc{0});
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        for (int64_t i = 0; i < s.q_len; ++i) {
          detail::backward_row<Acc, T>(s, q.row(b, i, h), k, v, dout.row(b, i, h), b, kv,
                                       s.q_pos0 + i, dq.row(b, i, h), dk_sum, dv_sum);
        }
      }
      for (int64_t j = 0; j < s.k_len; ++j) {
        for (int64_t d = 0; d < s.head_dim; ++d) {
          dk.row(b, j, kv)[d] = static_cast<T>(dk_sum[static_cast<size_t>(j * s.head_dim + d)]);
          dv.row(b, j, kv)[d] = static_cast<T>(dv_sum[static_cast<size_t>(j * s.head_dim + d)]);
        }
      }
    }
  }
}

// One step with a cache. q, out: (B, q_len, H, D); k, v: caches (B, capacity = k_len, K, D) of
// which row b holds kv_len[b] tokens, the newest q_len included. Query i of row b stands at
// position kv_len[b] - q_len + i, key j at j; q_pos0 and k_pos0 are not used. Cache rows at
// kv_len[b] and beyond are never read. lse: (B, H, q_len) contiguous, may be null.
template <typename T, typename Acc = double, typename Lse = T>
void attention_decode(const AttentionShape& shape, View<const T> q, View<const T> k,
                      View<const T> v, const int32_t* kv_len, View<T> out, Lse* lse) {
  AttentionShape s = shape;
  s.q_pos0 = 0;
  s.k_pos0 = 0;
  const int64_t group = s.n_head / s.n_kv_head;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.n_head; ++h) {
      for (int64_t i = 0; i < s.q_len; ++i) {
        Acc row_lse = 0;
        detail::attend_row<Acc, T>(s, q.row(b, i, h), k, v, b, h / group, kv_len[b] - s.q_len + i,
                                   kv_len[b], out.row(b, i, h), &row_lse);
        if (lse) lse[(b * s.n_head + h) * s.q_len + i] = static_cast<Lse>(row_lse);
      }
    }
  }
}

}  // namespace heddle::kernels::reference
