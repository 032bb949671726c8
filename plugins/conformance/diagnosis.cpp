#include "plugins/conformance/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "plugins/conformance/semantics.h"

namespace heddle::conformance {
namespace {

// Beyond this many multiplications trying every known mistake takes too long.
constexpr double kMostProducts = 5e5;
// Mistakes that a problem cannot tell apart are named up to this many.
constexpr int kMostMistakes = 2;

const std::vector<float>& tensor_of(const Arrays& a, const std::string& name) {
  if (name == "lse") return a.lse;
  if (name == "dq") return a.dq;
  if (name == "dk") return a.dk;
  return name == "dv" ? a.dv : a.out;
}
const std::vector<double>& tensor_of(const Exact& a, const std::string& name) {
  if (name == "lse") return a.lse;
  if (name == "dq") return a.dq;
  if (name == "dk") return a.dk;
  return name == "dv" ? a.dv : a.out;
}

std::string number(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", v);
  return text;
}

// Small enough to try every known mistake.
bool searchable(const Case& c) {
  const double work = static_cast<double>(c.batch * c.n_head) *
                      static_cast<double>(c.q_len * c.k_len) * static_cast<double>(c.head_dim);
  return work <= kMostProducts;
}

std::string matching_mistake(const Case& c, const Arrays& inputs, const Arrays& got,
                             const Exact& want) {
  const double size = score_size(c, inputs);
  Arrays without_lse = got;
  without_lse.lse.clear();
  const bool only_lse = !compare_results(c, without_lse, want, size);
  std::string words;
  int matches = 0;
  for (const Semantics& mistake : known_mistakes(c)) {
    if (mistake.any_lse && only_lse) continue;
    Exact expected = model_results(c, inputs, mistake);
    if (mistake.any_lse) expected.lse.clear();
    if (compare_results(c, got, expected, size)) continue;
    if (!compare_results(c, narrowed(expected), want, size)) continue;  // changes nothing here
    if (words.find(mistake.words) != std::string::npos) continue;
    words += (words.empty() ? "" : "; or: ") + mistake.words;
    if (++matches == kMostMistakes) break;
  }
  return words;
}

std::string about_nan(const Case& c, const Difference& d) {
  if (std::isinf(d.want)) {
    return "NaN for a row that sees no key: its maximum is -inf, and -inf - -inf is NaN";
  }
  if (d.want == 0.0 && c.op != HEDDLE_OP_DECODE) {
    const KeySpan span =
        d.tensor == "out" || d.tensor == "dq" ? keys_seen(c, d.b, d.row) : KeySpan{0, 0};
    if (span.size() == 0) {
      return "NaN for a row that sees no key: out and gradients of such a row are 0";
    }
  }
  if (c.data == Data::kLarge) {
    return "exp overflows for large scores: the row's maximum is not subtracted before exp";
  }
  if (c.op == HEDDLE_OP_DECODE) {
    return "the cache holds NaN at kv_len and behind: keys past the length reach the result";
  }
  return "a NaN that the inputs do not have";
}

// One factor or one offset for all elements.
std::string constant_error(const std::vector<float>& got, const std::vector<double>& want) {
  double ratio = 0.0, offset = 0.0;
  bool same_ratio = true, same_offset = true;
  int64_t used = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(want[i]) || !std::isfinite(got[i])) continue;
    const double x = got[i] - want[i];
    if (used++ == 0) offset = x;
    same_offset = same_offset && std::fabs(x - offset) <= 1e-4 * std::max(1.0, std::fabs(offset));
    if (std::fabs(want[i]) < 1e-3) continue;
    const double r = got[i] / want[i];
    if (ratio == 0.0) ratio = r;
    same_ratio = same_ratio && std::fabs(r - ratio) <= 2e-4 * std::fabs(ratio);
  }
  if (used < 2) return {};
  if (same_ratio && ratio != 0.0 && std::fabs(ratio - 1.0) > 1e-3)
    return "every element is " + number(ratio) + " times the expected";
  if (same_offset) return "every element is off by " + number(offset);
  return {};
}

std::string precision(const Difference& d) {
  if (!(d.relative > 0.0 && d.relative < 2e-2)) return {};
  if (d.relative < 1e-3) {
    return "small errors everywhere (relative " + number(d.relative) +
           "): rounding to fewer bits (fp16, tf32) or a fast exp?";
  }
  return "small errors everywhere (relative " + number(d.relative) + "): rounding to bf16?";
}

}  // namespace

std::string where_wrong(const Case& c, const std::string& tensor, const std::vector<float>& got,
                        const std::vector<double>& want, double bound) {
  const Shape s = shape_of(c, tensor.c_str());
  std::set<int64_t> batches, heads, rows, dims;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t row = 0; row < s.tokens; ++row) {
        for (int64_t d = 0; d < s.dim; ++d) {
          const size_t n = s.at(b, h, row, d);
          if (got[n] == want[n] || std::fabs(got[n] - want[n]) <= bound) continue;
          batches.insert(b);
          heads.insert(h);
          rows.insert(row);
          dims.insert(d);
        }
      }
    }
  }
  std::string text;
  const auto add = [&](const char* one, const char* many, const std::set<int64_t>& set, int64_t n) {
    if (set.empty() || static_cast<int64_t>(set.size()) == n) return;
    const int64_t first = *set.begin(), last = *set.rbegin();
    std::string words;
    if (first == last) {
      words = std::string(one) + " " + std::to_string(first);
    } else if (last - first + 1 == static_cast<int64_t>(set.size())) {
      words = std::string(many) + (last == n - 1
                                       ? " >= " + std::to_string(first)
                                       : " " + std::to_string(first) + ".." + std::to_string(last));
    } else {
      return;
    }
    text += (text.empty() ? "only " : " and ") + words;
  };
  const bool keys = tensor == "dk" || tensor == "dv";
  add("batch row", "batch rows", batches, s.batch);
  add("head", "heads", heads, s.heads);
  add(keys ? "key" : "row", keys ? "keys" : "rows", rows, s.tokens);
  add("dim", "dims", dims, s.dim);
  return text;
}

Diagnosis diagnose(const Case& c, const Arrays& inputs, const Arrays& got, const Exact& want,
                   const Difference& difference) {
  std::string text;
  if (difference.unwritten) {
    text = "it still holds the bytes from before the call: not written, or 0 was added to it";
  } else if (std::isnan(difference.got) || (std::isinf(difference.got) && c.data == Data::kLarge)) {
    text = about_nan(c, difference);
  } else if (searchable(c)) {
    text = matching_mistake(c, inputs, got, want);
    if (!text.empty()) return {text, true, true};
  }
  const std::vector<float>& g = tensor_of(got, difference.tensor);
  const std::vector<double>& w = tensor_of(want, difference.tensor);
  if (text.empty()) text = constant_error(g, w);
  const std::string place = where_wrong(c, difference.tensor, g, w, 1e-5);
  if (text.empty() && place.empty()) text = precision(difference);
  if (!place.empty()) text += (text.empty() ? "" : "; ") + place;
  return {text, false, searchable(c)};
}

std::string read_probe(const Case& c, const Arrays& got, const Difference& d) {
  if (d.tensor != "out" && d.tensor != "lse") return {};
  const std::string row = "row " + std::to_string(d.row);
  const KeySpan want = keys_seen(c, d.b, d.row);
  const auto span_text = [](int64_t first, int64_t last) {
    if (last < first) return std::string("no key");
    if (last == first) return "key " + std::to_string(first);
    return "keys " + std::to_string(first) + ".." + std::to_string(last);
  };
  const std::string expected = ", expected " + span_text(want.first, want.last);
  const size_t at = shape_of(c, "out").at(d.b, d.h, d.row, 0);
  if (c.data == Data::kHead) {
    const int64_t head = std::lround(got.out[at]) - 1;
    if (static_cast<double>(got.out[at]) != static_cast<double>(head + 1)) return {};
    if (head == d.h / group_of(c)) return {};
    return "query head " + std::to_string(d.h) + " reads kv head " + std::to_string(head) +
           ", expected " + std::to_string(d.h / group_of(c));
  }
  if (c.data == Data::kHot && c.k_len <= c.head_dim) {
    for (int64_t j = 0; j < c.k_len; ++j) {
      const bool sees = got.out[at + static_cast<size_t>(j)] != 0.0f;
      const bool should = j >= want.first && j <= want.last;
      if (sees == should) continue;
      return row + (sees ? " sees key " : " does not see key ") + std::to_string(j) +
             (sees ? ", which is hidden from it" : ", which is visible to it") + expected;
    }
  }
  if (c.data != Data::kCount || got.lse.empty()) return {};
  const float lse = got.lse[shape_of(c, "lse").at(d.b, d.h, d.row, 0)];
  const double n = std::exp(static_cast<double>(lse));
  const double mean = got.out[at];
  if (!std::isfinite(n) || !std::isfinite(mean)) return {};
  if (std::fabs(n - std::round(n)) > 1e-3 * std::max(1.0, n)) return {};
  const double first = mean - (std::round(n) - 1) / 2;
  if (std::round(n) < 1 || std::fabs(first - std::round(first)) > 1e-2) return {};
  const auto from = static_cast<int64_t>(std::lround(first));
  const auto to = from + static_cast<int64_t>(std::lround(n)) - 1;
  if (from == want.first && to == want.last) return {};
  return row + " sees " + span_text(from, to) + expected;
}

}  // namespace heddle::conformance
