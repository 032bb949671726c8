// The resolved model: what a configuration means once the vocabulary is known. Checkpoints store
// it, so that a run can refuse weights of another model by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/config/config.h"
#include "framework/core/json.h"

namespace heddle {

struct ModelSpec {
  int64_t n_layer = 0;
  int64_t n_head = 0;
  int64_t n_kv_head = 0;
  int64_t n_embd = 0;
  int64_t head_dim = 0;
  int64_t sequence_len = 0;
  int64_t vocab_size = 0;
  int64_t padded_vocab = 0;  // vocab_size rounded up to 64: rows of wte, lm_head, value embeddings
  std::vector<int64_t> windows;  // window_left per layer; -1: unlimited
  double rope_base = 100000.0;
  bool qk_norm = true;
  double qk_scale = 1.2;
  double softcap = 15.0;  // 0: off
  bool smear = true;
  bool backout = true;
  bool value_embeds = true;
  bool resid_lambdas = true;
  bool x0_lambdas = true;

  int64_t kv_dim() const { return n_kv_head * head_dim; }
  // Columns of a fused projection row: q (C), k (K*D), v (K*D).
  int64_t qkv_dim() const { return n_embd + 2 * kv_dim(); }
  int64_t mlp_dim() const { return 4 * n_embd; }
  bool has_value_embed(int64_t layer) const {
    return value_embeds && layer % 2 == (n_layer - 1) % 2;
  }
  // 0-based index of the block whose output backout subtracts at the end.
  int64_t backout_layer() const { return n_layer / 2; }

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// `vocab_size` is the tokenizer's (0: unknown); model.vocab_size, where given, may only be larger.
// Throws heddle::Error (config) naming the key that is wrong.
ModelSpec resolve_model(const ModelConfig& config, int64_t vocab_size);

// The S of a window pattern: a quarter of the sequence, up to a multiple of 128.
int64_t short_window(int64_t sequence_len);

// Every field under its own name.
json::object spec_to_json(const ModelSpec& spec);
// Throws heddle::Error (config) naming `origin` and the key when one is missing or of another type.
ModelSpec spec_from_json(const json::value& value, const std::string& origin);

// One line per differing field: "n_head: 4 in the checkpoint, 6 in the config"; empty when equal.
std::string spec_difference(const ModelSpec& checkpoint, const ModelSpec& config);

// What the layers ask of attention, without duplicates, and where q, k and v lie in a fused row.
AttentionLayerKind attention_kind(const ModelSpec& spec, int64_t layer);
std::vector<AttentionLayerKind> attention_kinds(const ModelSpec& spec);
AttentionLayout attention_layout(const ModelSpec& spec);

// 6 per weight used in a product (lm_head included, embeddings not) + sum over layers of
// 12 * C * min(window, T): forward and backward, the causal half not discounted (nanochat
// gpt.py estimate_flops).
double flops_per_token(const ModelSpec& spec);

}  // namespace heddle
