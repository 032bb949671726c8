#include "framework/model/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "framework/core/error.h"
#include "framework/model/params.h"

namespace heddle {
namespace {

// The one list of fields: JSON both ways and the difference follow it.
template <class Spec, class Visit>
void visit_fields(Spec& s, Visit&& visit) {
  visit("n_layer", s.n_layer);
  visit("n_head", s.n_head);
  visit("n_kv_head", s.n_kv_head);
  visit("n_embd", s.n_embd);
  visit("head_dim", s.head_dim);
  visit("sequence_len", s.sequence_len);
  visit("vocab_size", s.vocab_size);
  visit("padded_vocab", s.padded_vocab);
  visit("windows", s.windows);
  visit("rope_base", s.rope_base);
  visit("qk_norm", s.qk_norm);
  visit("qk_scale", s.qk_scale);
  visit("softcap", s.softcap);
  visit("smear", s.smear);
  visit("backout", s.backout);
  visit("value_embeds", s.value_embeds);
  visit("resid_lambdas", s.resid_lambdas);
  visit("x0_lambdas", s.x0_lambdas);
}

std::vector<int64_t> numeric_windows(const std::vector<int64_t>& windows, int64_t n_layer) {
  const auto count = static_cast<int64_t>(windows.size());
  if (count != 1 && count != n_layer) {
    throw config_error(
        fmt::format("model.window_pattern lists {} windows for {} layers", count, n_layer),
        "list one for all layers or one per layer");
  }
  for (const int64_t w : windows) {
    if (w < -1) {
      throw config_error(fmt::format("model.window_pattern: got {}, expected at least -1", w),
                         "-1 is unlimited, 0 is the token itself, W is W earlier tokens");
    }
  }
  return count == n_layer ? windows
                          : std::vector<int64_t>(static_cast<size_t>(n_layer), windows[0]);
}

void check_letters(const std::string& letters) {
  if (letters.empty()) {
    throw config_error("model.window_pattern is empty",
                       "use the letters S and L, e.g. SSSL, or a list of numbers");
  }
  for (const char letter : letters) {
    if (std::string_view("SLsl").find(letter) != std::string_view::npos) continue;
    throw config_error(
        fmt::format("model.window_pattern \"{}\" has the letter '{}'", letters, letter),
        "use only S (short) and L (long), or a list of numbers");
  }
}

// The pattern repeats from layer 0; the last layer is always long.
std::vector<int64_t> letter_windows(const std::string& letters, int64_t n_layer,
                                    int64_t sequence_len) {
  check_letters(letters);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < n_layer; ++i) {
    const char letter = letters[static_cast<size_t>(i) % letters.size()];
    const bool is_long = letter == 'L' || letter == 'l' || i == n_layer - 1;
    windows.push_back(is_long ? sequence_len : short_window(sequence_len));
  }
  return windows;
}

void check_shape(const ModelSpec& s) {
  if (s.n_layer < 1)
    throw config_error(fmt::format("model.n_layer: got {}, expected at least 1", s.n_layer));
  if (s.head_dim * s.n_head != s.n_embd) {
    throw config_error(
        fmt::format("model.n_embd {} is not a multiple of model.n_head {}", s.n_embd, s.n_head),
        "change one of them");
  }
  if (s.n_kv_head < 1 || s.n_head % s.n_kv_head != 0) {
    throw config_error(fmt::format("model.n_head {} is not a multiple of model.n_kv_head {}",
                                   s.n_head, s.n_kv_head),
                       "set model.n_kv_head to a divisor of model.n_head");
  }
  if (s.head_dim % 2 != 0) {
    throw config_error(
        fmt::format("head_dim {} (n_embd {} / n_head {}) is odd; RoPE rotates halves", s.head_dim,
                    s.n_embd, s.n_head),
        "choose model.n_embd and model.n_head with an even quotient");
  }
  if (s.smear && s.n_embd < kSmearChannels) {
    throw config_error(fmt::format("model.n_embd {} is less than the {} channels that smear reads",
                                   s.n_embd, kSmearChannels),
                       "widen the model or set model.smear: false");
  }
  if (s.value_embeds && s.n_embd < kValueGateChannels) {
    throw config_error(
        fmt::format("model.n_embd {} is less than the {} channels that a value gate reads",
                    s.n_embd, kValueGateChannels),
        "widen the model or set model.value_embeds: false");
  }
}

int64_t resolve_vocab(const ModelConfig& config, int64_t vocab_size) {
  const int64_t vocab = config.vocab_size.value_or(vocab_size);
  if (vocab < 2) {
    throw config_error(fmt::format("model.vocab_size: got {}, expected at least 2", vocab),
                       "set model.vocab_size");
  }
  if (vocab < vocab_size) {
    throw config_error(
        fmt::format("model.vocab_size {} is less than the tokenizer's {}", vocab, vocab_size),
        "set model.vocab_size: auto");
  }
  return vocab;
}

template <class T>
void read_field(const json::object& object, std::string_view name, const std::string& origin,
                T& out) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) {
    throw config_error(fmt::format("{} has no \"{}\" in its model", origin, name),
                       "the file is not complete; use another checkpoint");
  }
  try {
    out = json::value_to<T>(*value);
  } catch (const std::exception&) {
    throw config_error(
        fmt::format("{}: model.{} has another type: {}", origin, name, json::serialize(*value)),
        "the file is damaged; use another checkpoint");
  }
}

template <class T>
std::string show(const T& value) {
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return fmt::format("[{}]", fmt::join(value, ", "));
  } else {
    return fmt::format("{}", value);
  }
}

}  // namespace

int64_t short_window(int64_t sequence_len) {
  return (sequence_len + 511) / 512 * 128;
}

ModelSpec resolve_model(const ModelConfig& config, int64_t vocab_size) {
  if (config.n_head < 1) {
    throw config_error(fmt::format("model.n_head: got {}, expected at least 1", config.n_head));
  }
  ModelSpec s;
  s.n_layer = config.n_layer;
  s.n_head = config.n_head;
  s.n_kv_head = config.kv_heads();
  s.n_embd = config.n_embd;
  s.head_dim = config.head_dim();
  s.sequence_len = config.sequence_len;
  s.vocab_size = resolve_vocab(config, vocab_size);
  s.padded_vocab = (s.vocab_size + 63) / 64 * 64;
  s.rope_base = config.rope_base;
  s.qk_norm = config.qk_norm;
  s.qk_scale = config.qk_scale;
  s.softcap = config.softcap;
  s.smear = config.smear;
  s.backout = config.backout;
  s.value_embeds = config.value_embeds;
  s.resid_lambdas = config.resid_lambdas;
  s.x0_lambdas = config.x0_lambdas;
  check_shape(s);
  const WindowPattern& pattern = config.window_pattern;
  s.windows = pattern.windows.empty() ? letter_windows(pattern.letters, s.n_layer, s.sequence_len)
                                      : numeric_windows(pattern.windows, s.n_layer);
  return s;
}

json::object spec_to_json(const ModelSpec& spec) {
  json::object out;
  visit_fields(spec,
               [&](const char* name, const auto& value) { out[name] = json::value_from(value); });
  return out;
}

ModelSpec spec_from_json(const json::value& value, const std::string& origin) {
  const json::object* object = value.if_object();
  if (object == nullptr) {
    throw config_error(origin + ": the model is not a JSON object",
                       "the file is damaged; use another checkpoint");
  }
  ModelSpec spec;
  visit_fields(spec, [&](const char* name, auto& out) { read_field(*object, name, origin, out); });
  return spec;
}

std::string spec_difference(const ModelSpec& checkpoint, const ModelSpec& config) {
  const json::object other = spec_to_json(config);
  std::string out;
  visit_fields(checkpoint, [&](const char* name, const auto& mine) {
    using T = std::remove_cvref_t<decltype(mine)>;
    const T theirs = json::value_to<T>(other.at(name));
    if (mine == theirs) return;
    if (!out.empty()) out += '\n';
    out +=
        fmt::format("{}: {} in the checkpoint, {} in the config", name, show(mine), show(theirs));
  });
  return out;
}

AttentionLayerKind attention_kind(const ModelSpec& spec, int64_t layer) {
  return {spec.n_head, spec.n_kv_head, spec.head_dim, spec.windows.at(static_cast<size_t>(layer))};
}

std::vector<AttentionLayerKind> attention_kinds(const ModelSpec& spec) {
  std::vector<AttentionLayerKind> kinds;
  for (int64_t i = 0; i < spec.n_layer; ++i) {
    const AttentionLayerKind kind = attention_kind(spec, i);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

AttentionLayout attention_layout(const ModelSpec& spec) {
  const int64_t row = spec.qkv_dim();
  return {.q_row = row,
          .k_row = row,
          .v_row = row,
          .out_row = spec.n_embd,
          .dq_row = row,
          .dk_row = row,
          .dv_row = row,
          .dout_row = spec.n_embd};
}

double flops_per_token(const ModelSpec& spec) {
  const ParamCounts counts = count_params(ParamLayout(spec));
  const int64_t in_products =
      counts.transformer_matrices + counts.lm_head + (spec.smear ? kSmearChannels : 0);
  double flops = 6.0 * static_cast<double>(in_products);
  for (const int64_t w : spec.windows) {
    const int64_t visible = w < 0 ? spec.sequence_len : std::min(w, spec.sequence_len);
    flops += 12.0 * static_cast<double>(spec.n_embd) * static_cast<double>(visible);
  }
  return flops;
}

}  // namespace heddle
