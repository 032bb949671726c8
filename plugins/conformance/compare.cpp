#include "plugins/conformance/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "plugins/conformance/dtype.h"

namespace heddle::conformance {
namespace {

// Where terms of magnitude 1 cancel, what is left is rounding: a tensor whose expected values are
// smaller than this (root mean square) is held to an absolute error instead of a relative one.
constexpr double kLeastRms = 0.03;
// Of data made to cancel.
constexpr double kLeastRmsOfCancelling = 1.0;
// Scores up to this size are rounded little enough for the published gates.
constexpr double kPlainScores = 24.0;

Gate widened(Gate gate, double score_size) {
  const double factor = std::max(1.0, score_size / kPlainScores);
  gate.relative *= factor;
  gate.absolute *= factor;
  if (factor > 1.0) gate.least_rms = kLeastRmsOfCancelling;
  return gate;
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

double error_of(double got, double want) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0.0;
  if (!std::isfinite(want) || !std::isfinite(got)) return std::numeric_limits<double>::infinity();
  return std::fabs(got - want);
}

// One pass over a tensor: what of it is wrong.
struct Survey {
  double largest = 0.0;  // magnitude expected
  double error_squares = 0.0, want_squares = 0.0;
  double worst = 0.0;  // error
};

Survey survey(const std::vector<float>& got, const std::vector<double>& want) {
  Survey s;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = error_of(got[i], want[i]);
    if (std::isfinite(want[i])) {
      s.largest = std::max(s.largest, std::fabs(want[i]));
      s.want_squares += want[i] * want[i];
    }
    s.error_squares += error * error;
    s.worst = std::max(s.worst, error);
  }
  return s;
}

}  // namespace

Gate out_gate(uint32_t dtype, double score_size) {
  const Gate gate = dtype == HEDDLE_DTYPE_F32   ? Gate{3e-6, 1e-5, 0.0, kLeastRms}
                    : dtype == HEDDLE_DTYPE_F16 ? Gate{6e-4, 1e-3, 0.0, kLeastRms}
                                                : Gate{4e-3, 8e-3, 0.0, kLeastRms};
  return widened(gate, score_size);
}

Gate gradient_gate(uint32_t dtype, double score_size) {
  const Gate gate = dtype == HEDDLE_DTYPE_F32   ? Gate{1e-5, 3e-5, 0.0, kLeastRms}
                    : dtype == HEDDLE_DTYPE_F16 ? Gate{1.2e-3, 2e-3, 0.0, kLeastRms}
                                                : Gate{8e-3, 1.5e-2, 0.0, kLeastRms};
  return widened(gate, score_size);
}

Gate lse_gate(double score_size) {
  Gate gate = widened({0.0, 1e-5, 0.0}, score_size);
  gate.per_element = 2e-6;
  return gate;
}

Gate probe_gate(uint32_t dtype) {
  if (dtype == HEDDLE_DTYPE_F32) return {0.0, 1e-6, 0.0};
  return {0.0, 0.0, dtype == HEDDLE_DTYPE_F16 ? 0x1p-10 : 0x1p-8};
}

Shape shape_of(const Case& c, const char* tensor) {
  const bool keys = std::strcmp(tensor, "k") == 0 || std::strcmp(tensor, "v") == 0 ||
                    std::strcmp(tensor, "dk") == 0 || std::strcmp(tensor, "dv") == 0;
  if (std::strcmp(tensor, "lse") == 0) return {tensor, c.batch, c.q_len, c.n_head, 1, true};
  if (keys) return {tensor, c.batch, c.k_len, c.n_kv_head, c.head_dim, false};
  return {tensor, c.batch, c.q_len, c.n_head, c.head_dim, false};
}

std::optional<Difference> compare(const Shape& shape, const std::vector<float>& got,
                                  const std::vector<double>& want, const Gate& gate, float poison) {
  const Survey s = survey(got, want);
  const double bound = gate.absolute * std::max(1.0, gate.per_element > 0.0 ? 1.0 : s.largest);
  const double least = gate.least_rms * gate.least_rms * static_cast<double>(want.size());
  const double relative =
      s.error_squares == 0.0
          ? 0.0
          : std::sqrt(s.error_squares / std::max({s.want_squares, least, 1e-60}));
  const auto wrong = [&](size_t n, double limit) {
    const double error = error_of(got[n], want[n]);
    if (std::isinf(error)) return true;
    return error > limit + (error > 0.0 ? gate.per_element * std::fabs(want[n]) : 0.0);
  };
  bool any = false;
  for (size_t n = 0; n < want.size() && !any; ++n) any = wrong(n, bound);
  // A tensor of zeros has no relative error.
  const bool whole = gate.relative > 0.0 && s.want_squares > 0.0 && relative > gate.relative;
  if (!any && !whole) return std::nullopt;
  const double limit = any ? bound : s.worst * 0.5;  // only the whole is wrong: show a large error
  std::optional<Difference> first;
  int64_t count = 0;
  bool unwritten = true;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      for (int64_t row = 0; row < shape.tokens; ++row) {
        for (int64_t d = 0; d < shape.dim; ++d) {
          const size_t n = shape.at(b, h, row, d);
          if (!wrong(n, limit)) continue;
          ++count;
          if (!first) first = Difference{shape.tensor, b, h, row, d, got[n], want[n]};
          if (!same_bits(got[n], poison)) unwritten = false;
        }
      }
    }
  }
  if (first) {
    first->wrong = count;
    first->relative = relative;
    first->unwritten = unwritten;
    first->elements = static_cast<int64_t>(want.size());
  }
  return first;
}

namespace {

std::optional<Difference> compare_all(const Case& c, const Arrays& got, const Exact& want,
                                      const Gate& out, const Gate& lse, const Gate& gradient) {
  const float poison = poison_of(c);
  const auto one = [&](const char* name, const std::vector<float>& g, const std::vector<double>& w,
                       const Gate& gate) {
    if (g.size() != w.size() || g.empty()) return std::optional<Difference>{};
    const bool is_lse = std::strcmp(name, "lse") == 0;
    Case as_f32 = c;
    as_f32.dtype = HEDDLE_DTYPE_F32;
    return compare(shape_of(c, name), g, w, gate, is_lse ? poison_of(as_f32) : poison);
  };
  if (c.op == HEDDLE_OP_BACKWARD) {
    if (auto d = one("dv", got.dv, want.dv, gradient)) return d;
    if (auto d = one("dk", got.dk, want.dk, gradient)) return d;
    return one("dq", got.dq, want.dq, gradient);
  }
  if (auto d = one("lse", got.lse, want.lse, lse)) return d;
  return one("out", got.out, want.out, out);
}

}  // namespace

std::optional<Difference> compare_results(const Case& c, const Arrays& got, const Exact& want,
                                          double score_size) {
  Gate gradient = gradient_gate(c.dtype, score_size);
  if (c.data == Data::kEqual || c.data == Data::kDenormal || c.data == Data::kOneHot) {
    gradient.least_rms = kLeastRmsOfCancelling;
  }
  if (c.dtype != HEDDLE_DTYPE_F32) {
    // dout . v and dout . out cancel, and out is stored rounded: an error in proportion to values,
    // whose mean is 8 in one set of data, and to keys, which are 6 or 0 in another.
    const double cancelling = c.data == Data::kOffset   ? 8.0
                              : c.data == Data::kOneHot ? 6.0
                              : c.data == Data::kEqual  ? 2.0
                                                        : 1.0;
    gradient.relative *= cancelling;
    gradient.absolute *= cancelling;
  }
  return compare_all(c, got, want, out_gate(c.dtype, score_size), lse_gate(score_size), gradient);
}

std::optional<Difference> compare_probe(const Case& c, const Arrays& got, const Exact& want) {
  Gate gate = probe_gate(c.dtype);
  // A backend may divide by the sum before it adds up, so every key brings a rounding of its own. One
  // key too many or too few stays far outside: it moves a count by 1/2, a mean of n by 1/n.
  constexpr double kExactKeys = 256.0;
  const int64_t keys = c.window_left < 0 ? c.k_len : std::min(c.k_len, c.window_left + 1);
  gate.absolute *= std::max(1.0, static_cast<double>(keys) / kExactKeys);
  // Gradients come from exp(score - lse) with an lse that has been rounded, summed over many rows.
  Gate gradient = gate;
  gradient.absolute *= 4.0;
  // In 16 bits there are two roundings: of the weights and of their sum, or of keys' numbers as
  // values and of the result.
  gradient.per_element *= 2.0;
  if (c.data == Data::kCount) gate.per_element *= 2.0;
  return compare_all(c, got, want, gate, {0.0, 1e-6, 1e-6}, gradient);
}

float poison_of(const Case& c) {
  std::byte bytes[4];
  std::memset(bytes, static_cast<int>(c.poison), sizeof bytes);
  return load_element(c.dtype, bytes);
}

std::string describe(const Difference& d) {
  char text[240];
  const char* note = d.unwritten ? " (never written)" : "";
  const char* places = d.tensor == "lse" ? "(b %lld, h %lld, row %lld)"
                       : d.tensor == "dk" || d.tensor == "dv"
                           ? "(b %lld, kv head %lld, key %lld, dim %lld)"
                           : "(b %lld, h %lld, row %lld, dim %lld)";
  char place[80];
  std::snprintf(place, sizeof place, places, static_cast<long long>(d.b),
                static_cast<long long>(d.h), static_cast<long long>(d.row),
                static_cast<long long>(d.dim));
  std::snprintf(text, sizeof text,
                "%s %s: got %.7g%s, expected %.7g; %lld of %lld elements are wrong",
                d.tensor.c_str(), place, d.got, note, d.want, static_cast<long long>(d.wrong),
                static_cast<long long>(d.elements));
  return text;
}

}  // namespace heddle::conformance
