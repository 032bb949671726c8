#include "plugins/conformance/arrays.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/reference/attention.h"
#include "plugins/conformance/dtype.h"

namespace heddle::conformance {
namespace {

namespace ref = kernels::reference;

// splitmix64, and normals from it by Box and Muller.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

void fill_normal(std::vector<float>& values, Random& random, float mean = 0.0f) {
  for (float& v : values) v = mean + random.normal();
}

void fill_normed(std::vector<float>& values, int64_t dim, Random& random) {
  fill_normal(values, random);
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(dim)) {
    double squares = 0.0;
    for (int64_t d = 0; d < dim; ++d) squares += values[row + d] * values[row + d];
    const double factor = 1.2 / std::sqrt(squares / static_cast<double>(dim) + 1e-30);
    for (int64_t d = 0; d < dim; ++d) values[row + d] *= static_cast<float>(factor);
  }
}

// Whole numbers, so that every product and sum of a score is exact in fp32 and bf16.
void fill_large(std::vector<float>& values, Random& random) {
  for (float& v : values) v = static_cast<float>(32 * (random.below(5) - 2));
}

void fill_one_hot(std::vector<float>& values, int64_t dim, Random& random) {
  std::fill(values.begin(), values.end(), 0.0f);
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(dim)) {
    const int64_t hot = random.below(std::min<int64_t>(dim, 3));
    values[row + static_cast<size_t>(hot)] = 6.0f;
  }
}

void repeat_first_row(std::vector<float>& values, int64_t row) {
  for (size_t i = static_cast<size_t>(row); i < values.size(); ++i) {
    values[i] = values[i % static_cast<size_t>(row)];
  }
}

// f(value, b, j, head, d) for every element of a k-like tensor.
template <class F>
void for_keys(const Case& c, std::vector<float>& values, F&& f) {
  size_t n = 0;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t j = 0; j < c.k_len; ++j) {
      for (int64_t h = 0; h < c.n_kv_head; ++h) {
        for (int64_t d = 0; d < c.head_dim; ++d) f(values[n++], b, j, h, d);
      }
    }
  }
}

void fill_probe(const Case& c, Arrays& a, Random& random) {
  fill_normal(a.q, random);
  std::fill(a.k.begin(), a.k.end(), 0.0f);
  if (c.data == Data::kUnit) {
    std::fill(a.q.begin(), a.q.end(), 0.0f);
    std::fill(a.dout.begin(), a.dout.end(), 1.0f);
    fill_normal(a.v, random);
    repeat_first_row(a.v, c.n_kv_head * c.head_dim);
    return;
  }
  fill_normal(a.dout, random);
  for_keys(c, a.v, [&](float& v, int64_t, int64_t j, int64_t h, int64_t d) {
    if (c.data == Data::kCount) v = static_cast<float>(j);
    if (c.data == Data::kHot) v = j % c.head_dim == d ? 1.0f : 0.0f;
    if (c.data == Data::kHead) v = static_cast<float>(h + 1);
  });
}

void fill_denormal(Arrays& a, Random& random) {
  constexpr float kTiny = 1e-39f;
  for (auto* values : {&a.q, &a.k, &a.v, &a.dout}) fill_normal(*values, random);
  for (auto* values : {&a.q, &a.k}) {
    for (float& v : *values) v *= kTiny;
  }
  for (size_t i = 0; i < a.v.size(); i += 3) a.v[i] *= kTiny;
}

void fill(const Case& c, Arrays& a) {
  Random random(static_cast<uint64_t>(c.seed) * 16 + static_cast<uint64_t>(c.data));
  switch (c.data) {
    case Data::kCount:
    case Data::kHot:
    case Data::kHead:
    case Data::kUnit:
      return fill_probe(c, a, random);
    case Data::kDenormal:
      return fill_denormal(a, random);
    case Data::kNormed:
      fill_normed(a.q, c.head_dim, random);
      fill_normed(a.k, c.head_dim, random);
      break;
    case Data::kLarge:
      fill_large(a.q, random);
      fill_large(a.k, random);
      break;
    case Data::kOneHot:
      fill_one_hot(a.q, c.head_dim, random);
      fill_one_hot(a.k, c.head_dim, random);
      break;
    case Data::kEqual:
    case Data::kRandom:
    case Data::kOffset:
      fill_normal(a.q, random);
      fill_normal(a.k, random);
      if (c.data == Data::kEqual) repeat_first_row(a.k, c.n_kv_head * c.head_dim);
      break;
  }
  fill_normal(a.v, random, c.data == Data::kOffset ? 8.0f : 0.0f);
  fill_normal(a.dout, random);
}

ref::AttentionShape reference_shape(const Case& c) {
  ref::AttentionShape s;
  s.batch = c.batch;
  s.q_len = c.q_len;
  s.k_len = c.k_len;
  s.n_head = c.n_head;
  s.n_kv_head = c.n_kv_head;
  s.head_dim = c.head_dim;
  s.scale = scale_of(c);
  s.causal = c.causal;
  s.window_left = c.window_left;
  s.q_pos0 = c.q_pos0;
  s.k_pos0 = c.k_pos0;
  return s;
}

template <class T>
ref::View<T> view_of(T* data, int64_t tokens, int64_t heads, int64_t dim) {
  return {data, ref::contiguous(tokens, heads, dim)};
}

std::vector<double> widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

Arrays make_inputs(const Case& c) {
  Arrays a;
  a.q.resize(static_cast<size_t>(query_elements(c)));
  a.k.resize(static_cast<size_t>(key_elements(c)));
  a.v.resize(a.k.size());
  if (c.op == HEDDLE_OP_BACKWARD) a.dout.resize(a.q.size());
  fill(c, a);
  if (c.dtype != HEDDLE_DTYPE_F32) {
    for (auto* values : {&a.q, &a.k, &a.v, &a.dout}) {
      for (float& v : *values) v = rounded(c.dtype, v);
    }
  }
  if (c.op == HEDDLE_OP_DECODE) {
    const auto poison = [&](float& v, int64_t b, int64_t j, int64_t, int64_t) {
      if (j >= keys_of(c, b)) v = std::numeric_limits<float>::quiet_NaN();
    };
    for_keys(c, a.k, poison);
    for_keys(c, a.v, poison);
  }
  return a;
}

namespace {

// Keys are all zero and values all alike: the rows need no sums.
void add_unit_results(const Case& c, Arrays& a) {
  a.out.assign(a.q.size(), 0.0f);
  a.lse.assign(static_cast<size_t>(lse_elements(c)), 0.0f);
  size_t n = 0;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t i = 0; i < c.q_len; ++i) {
      const int64_t keys = keys_seen(c, b, i).size();
      for (int64_t h = 0; h < c.n_head; ++h) {
        const auto value = static_cast<size_t>(h / group_of(c) * c.head_dim);
        for (int64_t d = 0; d < c.head_dim; ++d, ++n) {
          if (keys > 0) a.out[n] = a.v[value + static_cast<size_t>(d)];
        }
        a.lse[static_cast<size_t>((b * c.n_head + h) * c.q_len + i)] =
            static_cast<float>(std::log(static_cast<double>(keys)));
      }
    }
  }
}

}  // namespace

void add_forward_results(const Case& c, Arrays& arrays) {
  if (c.data == Data::kUnit) return add_unit_results(c, arrays);
  Case forward = c;
  forward.op = HEDDLE_OP_FORWARD;
  const Exact exact = exact_results(forward, arrays);
  arrays.out.assign(exact.out.begin(), exact.out.end());
  arrays.lse.assign(exact.lse.begin(), exact.lse.end());
  for (float& v : arrays.out) v = rounded(c.dtype, v);
}

Exact exact_results(const Case& c, const Arrays& inputs) {
  Exact e;
  const ref::AttentionShape s = reference_shape(c);
  const std::vector<double> q = widened(inputs.q), k = widened(inputs.k), v = widened(inputs.v);
  const auto qv = view_of(q.data(), c.q_len, c.n_head, c.head_dim);
  const auto kv = view_of(k.data(), c.k_len, c.n_kv_head, c.head_dim);
  const auto vv = view_of(v.data(), c.k_len, c.n_kv_head, c.head_dim);
  if (c.op == HEDDLE_OP_BACKWARD) {
    const std::vector<double> dout = widened(inputs.dout);
    e.dq.resize(q.size());
    e.dk.resize(k.size());
    e.dv.resize(k.size());
    ref::attention_backward<double>(s, qv, kv, vv,
                                    view_of(dout.data(), c.q_len, c.n_head, c.head_dim),
                                    view_of(e.dq.data(), c.q_len, c.n_head, c.head_dim),
                                    view_of(e.dk.data(), c.k_len, c.n_kv_head, c.head_dim),
                                    view_of(e.dv.data(), c.k_len, c.n_kv_head, c.head_dim));
    return e;
  }
  e.out.resize(q.size());
  e.lse.resize(static_cast<size_t>(lse_elements(c)));
  const auto out = view_of(e.out.data(), c.q_len, c.n_head, c.head_dim);
  if (c.op == HEDDLE_OP_DECODE) {
    ref::attention_decode<double>(s, qv, kv, vv, c.kv_len.data(), out, e.lse.data());
  } else {
    ref::attention_forward<double>(s, qv, kv, vv, out, e.lse.data());
  }
  return e;
}

KeySpan keys_seen(const Case& c, int64_t b, int64_t i) {
  const int64_t self = query_position(c, b, i) - (c.op == HEDDLE_OP_DECODE ? 0 : c.k_pos0);
  KeySpan span;
  span.first = c.window_left < 0 ? 0 : std::max<int64_t>(0, self - c.window_left);
  span.last = keys_of(c, b) - 1;
  if (c.causal) span.last = std::min(span.last, self);
  return span;
}

namespace {

double probe_value(const Case& c, const KeySpan& span, int64_t h, int64_t d) {
  const auto n = static_cast<double>(span.size());
  if (n == 0.0) return 0.0;
  if (c.data == Data::kHead) return static_cast<double>(h / group_of(c) + 1);
  if (c.data == Data::kCount) return static_cast<double>(span.first + span.last) / 2.0;
  // Keys of the span that are congruent to d.
  const auto upto = [&](int64_t last) { return last < d ? 0 : (last - d) / c.head_dim + 1; };
  return static_cast<double>(upto(span.last) - upto(span.first - 1)) / n;
}

// dv[j] = group * sum over the rows that see j of 1 / n_row; dq = dk = 0.
Exact unit_gradients(const Case& c) {
  Exact e;
  e.dq.assign(static_cast<size_t>(query_elements(c)), 0.0);
  e.dk.assign(static_cast<size_t>(key_elements(c)), 0.0);
  std::vector<double> steps(static_cast<size_t>(c.k_len + 1), 0.0);  // differences along the keys
  for (int64_t i = 0; i < c.q_len; ++i) {
    const KeySpan span = keys_seen(c, 0, i);
    if (span.size() == 0) continue;
    const double share = static_cast<double>(group_of(c)) / static_cast<double>(span.size());
    steps[static_cast<size_t>(span.first)] += share;
    steps[static_cast<size_t>(span.last + 1)] -= share;
  }
  for (int64_t j = 1; j < c.k_len; ++j) {
    steps[static_cast<size_t>(j)] += steps[static_cast<size_t>(j - 1)];
  }
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t j = 0; j < c.k_len; ++j) {
      e.dv.insert(e.dv.end(), static_cast<size_t>(c.n_kv_head * c.head_dim),
                  steps[static_cast<size_t>(j)]);
    }
  }
  return e;
}

}  // namespace

Exact probe_results(const Case& c) {
  if (c.op == HEDDLE_OP_BACKWARD) return unit_gradients(c);
  Exact e;
  e.out.reserve(static_cast<size_t>(query_elements(c)));
  e.lse.resize(static_cast<size_t>(lse_elements(c)));
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t i = 0; i < c.q_len; ++i) {
      const KeySpan span = keys_seen(c, b, i);
      for (int64_t h = 0; h < c.n_head; ++h) {
        for (int64_t d = 0; d < c.head_dim; ++d) e.out.push_back(probe_value(c, span, h, d));
        e.lse[static_cast<size_t>((b * c.n_head + h) * c.q_len + i)] =
            std::log(static_cast<double>(span.size()));  // log 0 is -inf
      }
    }
  }
  return e;
}

double score_size(const Case& c, const Arrays& inputs) {
  // The largest row norms bound every product; exact enough for a tolerance.
  const auto largest_square = [&](const std::vector<float>& values) {
    double most = 0.0;
    for (size_t row = 0; row + c.head_dim <= values.size(); row += c.head_dim) {
      double squares = 0.0;
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const double x = values[row + static_cast<size_t>(d)];
        squares += x * x;
      }
      if (squares > most) most = squares;  // NaN of a cache's tail is not
    }
    return most;
  };
  return std::sqrt(largest_square(inputs.q) * largest_square(inputs.k)) *
         std::fabs(static_cast<double>(scale_of(c)));
}

}  // namespace heddle::conformance
