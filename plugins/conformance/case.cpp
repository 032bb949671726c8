#include "plugins/conformance/case.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <sstream>

namespace heddle::conformance {
namespace {

template <class E>
struct Names;

template <>
struct Names<Layout> {
  static constexpr const char* kAll[] = {"contiguous", "padded", "packed", "head_major"};
};
template <>
struct Names<Data> {
  static constexpr const char* kAll[] = {"random",   "normed", "large",   "equal",
                                         "denormal", "offset", "one_hot", "count",
                                         "hot",      "head",   "unit"};
};
template <>
struct Names<Edge> {
  static constexpr const char* kAll[] = {"end", "start"};
};
template <>
struct Names<Order> {
  static constexpr const char* kAll[] = {"in_order", "reversed", "shuffled", "one_piece"};
};

template <class C, class Visit>
void visit_fields(C& c, Visit&& visit) {
  visit("batch", c.batch);
  visit("q_len", c.q_len);
  visit("k_len", c.k_len);
  visit("n_head", c.n_head);
  visit("n_kv_head", c.n_kv_head);
  visit("head_dim", c.head_dim);
  visit("window_left", c.window_left);
  visit("causal", c.causal);
  visit("q_pos0", c.q_pos0);
  visit("k_pos0", c.k_pos0);
  visit("kv_len", c.kv_len);
  visit("scale", c.scale);
  visit("lse", c.lse);
  visit("deterministic", c.deterministic);
  visit("dtype", c.dtype);
  visit("align", c.align);
  visit("layout", c.layout);
  visit("data", c.data);
  visit("edge", c.edge);
  visit("order", c.order);
  visit("workers", c.workers);
  visit("poison", c.poison);
  visit("chunk", c.chunk);
  visit("seed", c.seed);
}

std::string text_of(int64_t v) {
  return std::to_string(v);
}
std::string text_of(uint32_t v) {
  return std::to_string(v);
}
std::string text_of(bool v) {
  return v ? "1" : "0";
}
std::string text_of(double v) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, v).ptr;
  return {text, end};
}
std::string text_of(const std::vector<int32_t>& v) {
  std::string text;
  for (const int32_t n : v) text += (text.empty() ? "" : ":") + std::to_string(n);
  return text;
}
template <class E>
requires std::is_enum_v<E> std::string text_of(E v) {
  return Names<E>::kAll[static_cast<size_t>(v)];
}

template <class N>
bool read_number(std::string_view text, N& v) {
  const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
  return r.ec == std::errc{} && r.ptr == text.data() + text.size();
}
bool read(std::string_view text, int64_t& v) {
  return read_number(text, v);
}
bool read(std::string_view text, uint32_t& v) {
  return read_number(text, v);
}
bool read(std::string_view text, double& v) {
  return read_number(text, v);
}
bool read(std::string_view text, bool& v) {
  v = text == "1";
  return v || text == "0";
}
bool read(std::string_view text, std::vector<int32_t>& v) {
  v.clear();
  while (!text.empty()) {
    const size_t end = std::min(text.find(':'), text.size());
    int32_t n = 0;
    if (!read_number(text.substr(0, end), n)) return false;
    v.push_back(n);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}
template <class E>
requires std::is_enum_v<E>
bool read(std::string_view text, E& v) {
  for (size_t i = 0; i < std::size(Names<E>::kAll); ++i) {
    if (text != Names<E>::kAll[i]) continue;
    v = static_cast<E>(i);
    return true;
  }
  return false;
}

bool read_field(std::string_view name, std::string_view text, Case& c) {
  bool found = false;
  visit_fields(c, [&](const char* field, auto& value) {
    if (name == field) found = read(text, value);
  });
  return found;
}

// What cannot be laid out in memory; what a plugin may refuse is left to its query().
std::string unusable(const Case& c) {
  if (c.batch < 0 || c.q_len < 0 || c.k_len < 0) return "a length is negative";
  if (c.n_head < 1 || c.n_kv_head < 1 || c.head_dim < 1) return "heads and head_dim start at 1";
  if (c.workers < 1 || c.workers > 3) return "workers is 1, 2 or 3";
  if (c.poison < 0 || c.poison > 255) return "poison is a byte";
  if (c.op == HEDDLE_OP_DECODE && c.kv_len.size() != static_cast<size_t>(c.batch)) {
    return "decode needs kv_len=N:N:..., one per batch row";
  }
  for (const int32_t n : c.kv_len) {
    if (n < 0 || n > c.k_len) return "kv_len lies in 0..k_len";
  }
  return {};
}

}  // namespace

float scale_of(const Case& c) {
  if (c.scale != 0.0) return static_cast<float>(c.scale);
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
}

int64_t group_of(const Case& c) {
  return c.n_head / c.n_kv_head;
}

int64_t query_position(const Case& c, int64_t b, int64_t i) {
  if (c.op != HEDDLE_OP_DECODE) return c.q_pos0 + i;
  return c.kv_len[static_cast<size_t>(b)] - c.q_len + i;
}

int64_t keys_of(const Case& c, int64_t b) {
  return c.op == HEDDLE_OP_DECODE ? c.kv_len[static_cast<size_t>(b)] : c.k_len;
}

const char* op_name(uint32_t op) {
  constexpr const char* kNames[] = {"none", "forward", "backward", "decode"};
  return op <= HEDDLE_OP_DECODE ? kNames[op] : "unknown";
}

const char* dtype_name(uint32_t dtype) {
  constexpr const char* kNames[] = {"none", "f32", "f16", "bf16"};
  return dtype <= HEDDLE_DTYPE_BF16 ? kNames[dtype] : "unknown";
}

std::string to_spec(const Case& c) {
  std::string spec = op_name(c.op);
  std::vector<std::string> defaults;
  const Case plain;
  visit_fields(plain, [&](const char*, const auto& v) { defaults.push_back(text_of(v)); });
  size_t n = 0;
  visit_fields(c, [&](const char* name, const auto& v) {
    const std::string text = text_of(v);
    if (text != defaults[n++]) spec += std::string(",") + name + "=" + text;
  });
  return spec;
}

std::optional<Case> parse_spec(std::string_view spec, std::string* error) {
  Case c;
  const size_t first = std::min(spec.find(','), spec.size());
  const std::string_view op = spec.substr(0, first);
  c.op = op == "forward"    ? HEDDLE_OP_FORWARD
         : op == "backward" ? HEDDLE_OP_BACKWARD
         : op == "decode"   ? HEDDLE_OP_DECODE
                            : 0;
  if (c.op == 0) {
    *error = "a case begins with forward, backward or decode, got '" + std::string(op) + "'";
    return std::nullopt;
  }
  std::string_view rest = spec.substr(std::min(first + 1, spec.size()));
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view value = item.substr(std::min(equals + 1, item.size()));
    if (read_field(item.substr(0, equals), value, c)) continue;
    *error = "'" + std::string(item) + "' is not FIELD=VALUE of a case";
    return std::nullopt;
  }
  *error = unusable(c);
  if (!error->empty()) return std::nullopt;
  return c;
}

std::string describe(const Case& c) {
  std::ostringstream text;
  text << op_name(c.op) << " batch " << c.batch << ", q_len " << c.q_len << ", k_len " << c.k_len
       << ", n_head " << c.n_head << ", n_kv_head " << c.n_kv_head << ", head_dim " << c.head_dim
       << ", window_left " << c.window_left;
  if (!c.causal) text << ", not causal";
  if (c.q_pos0 != 0 || c.k_pos0 != 0) text << ", q_pos0 " << c.q_pos0 << ", k_pos0 " << c.k_pos0;
  if (!c.kv_len.empty()) text << ", kv_len " << text_of(c.kv_len);
  if (c.scale != 0.0) text << ", scale " << text_of(c.scale);
  if (c.dtype != HEDDLE_DTYPE_F32) text << ", " << dtype_name(c.dtype);
  if (c.layout != Layout::kContiguous) text << ", " << text_of(c.layout);
  if (c.chunk != 0) text << ", in chunks of " << c.chunk;
  return text.str();
}

int64_t query_elements(const Case& c) {
  return c.batch * c.q_len * c.n_head * c.head_dim;
}
int64_t key_elements(const Case& c) {
  return c.batch * c.k_len * c.n_kv_head * c.head_dim;
}
int64_t lse_elements(const Case& c) {
  return c.batch * c.n_head * c.q_len;
}

}  // namespace heddle::conformance
