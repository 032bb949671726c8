#include "framework/attention/validation_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/attention.h"

namespace heddle {
namespace {

using kernels::reference::AttentionShape;
using kernels::reference::contiguous;
using kernels::reference::View;

// One kv head of one batch row: tensors with a head dimension of `group` or 1.
struct Slice {
  const heddle_attention_problem& p;
  const heddle_attention_call& c;
  int64_t b, kv, group, k_len;
  double rounding;

  View<const float> view(const void* data, const heddle_strides& s, int64_t head) const {
    return {static_cast<const float*>(data) + b * s.batch + head * s.head, {0, s.token, s.head}};
  }
  View<const float> q() const { return view(c.q, p.q, kv * group); }
  View<const float> k() const { return view(c.k, p.k, kv); }
  View<const float> v() const { return view(c.v, p.v, kv); }
  View<const float> out() const { return view(c.out, p.out, kv * group); }
  View<const float> dout() const { return view(c.dout, p.dout, kv * group); }
  View<const float> lse() const {
    return {c.lse + b * p.lse_stride_batch + kv * group * p.lse_stride_head,
            {0, 1, p.lse_stride_head}};
  }

  AttentionShape shape() const {
    AttentionShape s;
    s.q_len = p.q_len;
    s.k_len = p.k_len;
    s.n_head = group;
    s.head_dim = p.head_dim;
    s.scale = p.scale;
    s.causal = p.mask == HEDDLE_MASK_CAUSAL;
    s.window_left = p.window_left;
    s.q_pos0 = p.q_pos0;
    s.k_pos0 = p.k_pos0;
    return s;
  }
};

struct Magnitude {
  double element = 0.0, row = 0.0;  // largest |x|, largest norm of a row
};

Magnitude magnitude(const View<const float>& x, int64_t tokens, int64_t heads, int64_t dim) {
  Magnitude m;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* row = x.row(0, t, h);
      double square = 0.0;
      for (int64_t d = 0; d < dim; ++d) {
        m.element = std::max(m.element, std::abs(static_cast<double>(row[d])));
        square += static_cast<double>(row[d]) * row[d];
      }
      m.row = std::max(m.row, std::sqrt(square));
    }
  }
  return m;
}

std::string first_difference(const char* name, const Slice& s, const View<const float>& got,
                             const std::vector<float>& want, int64_t tokens, int64_t heads,
                             int64_t dim, int64_t head0, double tolerance) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        const double a = got.row(0, t, h)[d];
        const double e = want[static_cast<size_t>((t * heads + h) * dim + d)];
        if (a == e || std::abs(a - e) <= tolerance) continue;
        return fmt::format(
            "{} (b {}, token {}, head {}, dim {}): got {:.9g}, expected {:.9g} (tolerance {:.2g})",
            name, s.b, t, head0 + h, d, a, e, tolerance);
      }
    }
  }
  return {};
}

// Weights, gradients of scores and results are rounded to the tensors' type, one of them twice.
double rounded_relative(const Slice& s, double relative) {
  return relative + 4.0 * s.rounding;
}

// Relative error that fp32 arithmetic may make: rounding of sums, and of scores by their size.
double relative(const Slice& s, const Magnitude& q, const Magnitude& k) {
  return 2e-5 + 4e-6 * std::abs(static_cast<double>(s.p.scale)) * q.row * k.row;
}

std::string compare_rows(const Slice& s) {
  const int64_t n = s.p.q_len, dim = s.p.head_dim;
  std::vector<float> out(static_cast<size_t>(n * s.group * dim));
  std::vector<float> by_head(static_cast<size_t>(n * s.group)), lse(by_head.size());
  const View<float> out_view{out.data(), contiguous(n, s.group, dim)};
  if (s.p.op == HEDDLE_OP_DECODE) {
    kernels::reference::attention_decode<float>(s.shape(), s.q(), s.k(), s.v(), s.c.kv_len + s.b,
                                                out_view, by_head.data());
  } else {
    kernels::reference::attention_forward<float>(s.shape(), s.q(), s.k(), s.v(), out_view,
                                                 by_head.data());
  }
  for (int64_t h = 0; h < s.group; ++h) {
    for (int64_t t = 0; t < n; ++t) {
      lse[static_cast<size_t>(t * s.group + h)] = by_head[static_cast<size_t>(h * n + t)];
    }
  }
  const double e =
      relative(s, magnitude(s.q(), n, s.group, dim), magnitude(s.k(), s.k_len, 1, dim));
  const int64_t head0 = s.kv * s.group;
  if (s.p.flags & HEDDLE_FLAG_LSE_OUT) {
    std::string text = first_difference("lse", s, s.lse(), lse, n, s.group, 1, head0, e);
    if (!text.empty()) return text;
  }
  const double largest = magnitude(s.v(), s.k_len, 1, dim).element;
  return first_difference("out", s, s.out(), out, n, s.group, dim, head0,
                          rounded_relative(s, e) * largest);
}

std::string compare_gradients(const Slice& s) {
  const int64_t n = s.p.q_len, dim = s.p.head_dim;
  std::vector<float> dq(static_cast<size_t>(n * s.group * dim));
  std::vector<float> dk(static_cast<size_t>(s.k_len * dim)), dv(dk.size());
  const auto keys = contiguous(s.k_len, 1, dim), queries = contiguous(n, s.group, dim);
  kernels::reference::attention_backward<float>(
      s.shape(), s.q(), s.k(), s.v(), s.dout(), View<float>{dq.data(), queries},
      View<float>{dk.data(), keys}, View<float>{dv.data(), keys});
  const Magnitude q = magnitude(s.q(), n, s.group, dim), k = magnitude(s.k(), s.k_len, 1, dim);
  const Magnitude dout = magnitude(s.dout(), n, s.group, dim);
  const double e = rounded_relative(s, relative(s, q, k));
  // The gradient of a score is a difference of numbers as large as this.
  const double score =
      std::abs(static_cast<double>(s.p.scale)) * dout.row * magnitude(s.v(), s.k_len, 1, dim).row;
  const auto check = [&](const char* name, const void* data, const heddle_strides& strides,
                         const std::vector<float>& want, int64_t tokens, int64_t heads,
                         double term) {
    const int64_t head0 = s.kv * heads;
    const View<const float> expected{want.data(), contiguous(tokens, heads, dim)};
    const double size = magnitude(expected, tokens, heads, dim).element + term;
    return first_difference(name, s, s.view(data, strides, head0), want, tokens, heads, dim, head0,
                            e * size);
  };
  std::string text = check("dq", s.c.dq, s.p.dq, dq, n, s.group, score * k.element);
  if (text.empty()) text = check("dk", s.c.dk, s.p.dk, dk, s.k_len, 1, score * q.element);
  if (text.empty()) text = check("dv", s.c.dv, s.p.dv, dv, s.k_len, 1, dout.element);
  return text;
}

}  // namespace

std::string compare_with_reference(const heddle_attention_problem& problem,
                                   const heddle_attention_call& call, int64_t b, int64_t kv,
                                   double rounding) {
  const int64_t k_len = problem.op == HEDDLE_OP_DECODE ? call.kv_len[b] : problem.k_len;
  const Slice slice{problem, call, b, kv, problem.n_head / problem.n_kv_head, k_len,
                    rounding};
  return problem.op == HEDDLE_OP_BACKWARD ? compare_gradients(slice) : compare_rows(slice);
}

}  // namespace heddle
