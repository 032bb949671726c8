#include "plugins/conformance/want.h"

#include <charconv>
#include <limits>
#include <string_view>

namespace heddle::conformance {
namespace {

// Reads 17, -1 or 2^30 from the front of `text`.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t n = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), n);
  if (r.ec != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(r.ptr - text.data()));
  if (n != 2 || text.empty() || text.front() != '^') return n;
  text.remove_prefix(1);
  const auto power = take_number(text);
  if (!power || *power < 0 || *power > 62) return std::nullopt;
  return int64_t{1} << *power;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<std::vector<int64_t>> set_values(std::string_view text) {
  std::vector<int64_t> values;
  for (;;) {
    const auto n = take_number(text);
    if (!n) return std::nullopt;
    values.push_back(*n);
    if (take(text, "}")) return values;
    if (!take(text, ",")) return std::nullopt;
  }
}

std::optional<std::vector<int64_t>> range_values(std::string_view text) {
  const auto low = take_number(text);
  if (!low || !take(text, ",")) return std::nullopt;
  const auto high = take_number(text);
  if (!high || text.empty()) return std::nullopt;
  return std::vector<int64_t>{*low, text.front() == ')' ? *high - 1 : *high};
}

// Visits the scalar fields as (name, reference).
template <class P, class Visit>
void visit_fields(P& p, Visit&& visit) {
  visit("op", p.op);
  visit("device_type", p.device_type);
  visit("device_index", p.device_index);
  visit("dtype", p.dtype);
  visit("mask", p.mask);
  visit("flags", p.flags);
  visit("align_bytes", p.align_bytes);
  visit("batch", p.batch);
  visit("q_len", p.q_len);
  visit("k_len", p.k_len);
  visit("n_head", p.n_head);
  visit("n_kv_head", p.n_kv_head);
  visit("head_dim", p.head_dim);
  visit("window_left", p.window_left);
  visit("q_pos0", p.q_pos0);
  visit("k_pos0", p.k_pos0);
  visit("max_workspace", p.max_workspace);
}

}  // namespace

std::optional<std::vector<int64_t>> wanted_values(const std::string& want,
                                                  const heddle_attention_problem& problem) {
  std::string_view text = want;
  if (take(text, "in{")) return set_values(text);
  if (take(text, "in[")) return range_values(text);
  if (take(text, "divides n_head")) return std::vector<int64_t>{1, problem.n_head};
  if (take(text, "|x|<=")) return std::vector<int64_t>{0};
  const bool multiple = take(text, "%");
  int64_t shift = 0;
  if (!multiple && !take(text, "==") && !take(text, "<=") && !take(text, ">=")) {
    if (take(text, "<"))
      shift = -1;
    else if (take(text, ">"))
      shift = 1;
    else
      return std::nullopt;
  }
  const auto n = take_number(text);
  if (!n || (multiple && !take(text, "==0"))) return std::nullopt;
  return std::vector<int64_t>{*n + shift};
}

bool set_field(heddle_attention_problem& problem, const std::string& field, int64_t value) {
  bool found = false;
  visit_fields(problem, [&](const char* name, auto& v) {
    if (field != name) return;
    v = static_cast<std::remove_reference_t<decltype(v)>>(value);
    found = true;
  });
  problem.required_features = heddle_attention_required_features(&problem);
  return found;
}

std::optional<int64_t> get_field(const heddle_attention_problem& problem,
                                 const std::string& field) {
  std::optional<int64_t> value;
  visit_fields(problem, [&](const char* name, const auto& v) {
    if (field == name) value = static_cast<int64_t>(v);
  });
  return value;
}

}  // namespace heddle::conformance
