#include "framework/config/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "framework/config/fields.h"

namespace heddle::config_internal {
namespace {

struct Alias {
  std::string_view name;  // as other trainers write it, lower case, underscores
  std::string_view key;   // ours; empty: there is none, the note says what to do
  std::string_view note = {};
};

constexpr std::string_view kSequences = "sequences of one micro-step on one rank";
constexpr std::string_view kTokens = "tokens of one optimizer step on all ranks, not sequences";
constexpr std::string_view kHeadDim = "head_dim is model.n_embd / model.n_head: set model.n_embd";
constexpr std::string_view kAccumulation =
    "Accumulation follows from train.total_batch_size, train.device_batch_size and the ranks";
constexpr std::string_view kRanks = "The number of ranks is the launcher's: mpirun -n N heddle ...";
constexpr std::string_view kPrecision = "CPU runs compute in fp32; there is nothing to set";

constexpr Alias kAliases[] = {
    {"num_layers", "model.n_layer"},
    {"n_layers", "model.n_layer"},
    {"num_hidden_layers", "model.n_layer"},
    {"depth", "model.n_layer"},
    {"num_attention_heads", "model.n_head"},
    {"num_heads", "model.n_head"},
    {"n_heads", "model.n_head"},
    {"num_key_value_heads", "model.n_kv_head"},
    {"n_query_groups", "model.n_kv_head"},
    {"num_query_groups", "model.n_kv_head"},
    {"num_kv_heads", "model.n_kv_head"},
    {"kv_n_heads", "model.n_kv_head"},
    {"n_kv_heads", "model.n_kv_head"},
    {"hidden_size", "model.n_embd"},
    {"d_model", "model.n_embd"},
    {"dim", "model.n_embd"},
    {"n_embed", "model.n_embd"},
    {"head_dim", "", kHeadDim},
    {"head_size", "", kHeadDim},
    {"kv_channels", "", kHeadDim},
    {"d_head", "", kHeadDim},
    {"seq_length", "model.sequence_len"},
    {"sequence_length", "model.sequence_len"},
    {"seq_len", "model.sequence_len"},
    {"block_size", "model.sequence_len"},
    {"max_seq_len", "model.sequence_len"},
    {"context_length", "model.sequence_len"},
    {"max_position_embeddings", "model.sequence_len"},
    {"sliding_window", "model.window_pattern", "letters such as SSSL, or a list such as [64]"},
    {"sliding_window_size", "model.window_pattern", "letters such as SSSL, or a list such as [64]"},
    {"window_size", "model.window_pattern", "letters such as SSSL, or a list such as [64]"},
    {"window_left", "model.window_pattern", "letters such as SSSL, or a list such as [64]"},
    {"pattern", "model.window_pattern"},
    {"rope_theta", "model.rope_base"},
    {"rotary_emb_base", "model.rope_base"},
    {"rotary_base", "model.rope_base"},
    {"padded_vocab_size", "model.vocab_size", "padding is added by itself"},
    {"make_vocab_size_divisible_by", "", "The vocabulary is padded to a multiple of 64 by itself"},
    {"logit_softcap", "model.softcap"},
    {"batch_size", "train.device_batch_size", "sequences; train.total_batch_size counts tokens"},
    {"micro_batch_size", "train.device_batch_size", kSequences},
    {"train_micro_batch_size_per_gpu", "train.device_batch_size", kSequences},
    {"device_train_microbatch_size", "train.device_batch_size", kSequences},
    {"global_batch_size", "train.total_batch_size", kTokens},
    {"train_batch_size", "train.total_batch_size", kTokens},
    {"global_train_batch_size", "train.total_batch_size", kTokens},
    {"num_tokens_per_train_step", "train.total_batch_size"},
    {"gradient_accumulation_steps", "", kAccumulation},
    {"grad_acc_steps", "", kAccumulation},
    {"batch_accumulation_per_replica", "", kAccumulation},
    {"train_iters", "train.num_iterations"},
    {"train_steps", "train.num_iterations"},
    {"max_steps", "train.num_iterations"},
    {"max_iters", "train.num_iterations"},
    {"max_duration", "train.num_iterations", "optimizer steps"},
    {"steps", "train.num_iterations"},
    {"iterations", "train.num_iterations"},
    {"eval_interval", "train.eval_every"},
    {"num_threads", "train.threads"},
    {"autoresume", "train.resume", "auto"},
    {"load", "train.resume", "a checkpoint folder"},
    {"min_lr_factor", "optim.final_lr_frac"},
    {"lr_min_ratio", "optim.final_lr_frac"},
    {"alpha_f", "optim.final_lr_frac"},
    {"min_decay_lr", "optim.final_lr_frac", "a share of the rate"},
    {"warmup", "optim.warmup_steps"},
    {"t_warmup", "optim.warmup_steps"},
    {"lr_warmup_steps", "optim.warmup_steps"},
    {"warmup_iters", "optim.warmup_steps"},
    {"clip_grad", "optim.grad_clip"},
    {"gradient_clipping", "optim.grad_clip"},
    {"max_grad_norm", "optim.grad_clip"},
    {"max_norm", "optim.grad_clip"},
    {"lr", "optim.matrix_lr", "with optim.kind: adamw it is optim.adamw_lr"},
    {"learning_rate", "optim.matrix_lr", "with optim.kind: adamw it is optim.adamw_lr"},
    {"lr_scheduler", "optim.schedule"},
    {"scheduler", "optim.schedule"},
    {"momentum", "optim.muon_momentum"},
    {"save_interval", "checkpoint.every"},
    {"checkpoint_interval", "checkpoint.every"},
    {"save_every", "checkpoint.every"},
    {"keep_latest_k", "checkpoint.keep"},
    {"keep_last_n_checkpoints", "checkpoint.keep"},
    {"save_num_checkpoints_to_keep", "checkpoint.keep"},
    {"log_freq", "log.every"},
    {"log_interval", "log.every"},
    {"run_name", "log.name"},
    {"out_dir", "log.dir"},
    {"output_dir", "log.dir"},
    {"save_folder", "log.dir"},
    {"dump_dir", "log.dir"},
    {"attn_impl", "attention.backend"},
    {"attn_backend", "attention.backend"},
    {"attention_backend", "attention.backend"},
    {"attn_implementation", "attention.backend"},
    {"_attn_implementation", "attention.backend"},
    {"dtype", "", kPrecision},
    {"precision", "", kPrecision},
    {"bf16", "", kPrecision},
    {"dp", "", kRanks},
    {"world_size", "", kRanks},
    {"devices", "", kRanks},
    {"num_nodes", "", kRanks},
    {"data_parallel_shard_degree", "", kRanks},
    {"include", "", "One file holds a whole run; override keys on the command line instead"},
};

// Whole sections under other names.
constexpr Alias kSectionAliases[] = {
    {"optimizer", "optim"},
    {"training", "train"},
    {"trainer", "train"},
    {"eval", "train"},
    {"dataset", "data"},
    {"data_loader", "data"},
    {"run", "log"},
    {"logging", "log"},
    {"checkpoints", "checkpoint"},
    {"parallel", "dist"},
    {"parallelism", "dist"},
    {"distributed", "dist"},
    {"model_config", "model"},
    {"attn", "attention"},
};

struct KeyCollector {
  std::vector<std::string> keys;
  std::vector<std::string> sections;

  template <class S>
  void section(std::string_view name, S& section, std::string_view) {
    sections.emplace_back(name);
    visit_fields(section, *this);
  }
  template <class T>
  void field(std::string_view name, T&, const Rule&, std::string_view) {
    keys.push_back(sections.back() + "." + std::string(name));
  }
};

const KeyCollector& collected() {
  static const KeyCollector kCollector = [] {
    KeyCollector collector;
    Config config;
    visit_sections(config, collector);
    return collector;
  }();
  return kCollector;
}

std::string normalized(std::string_view name) {
  std::string out = lower_case(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string name_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(dot == std::string_view::npos ? key : key.substr(dot + 1));
}

std::string did_you_mean(std::string_view key, std::string_view note = {}) {
  if (note.empty()) return fmt::format("Did you mean {}?", key);
  return fmt::format("Did you mean {} ({})?", key, note);
}

// The same name in other sections, or "".
std::string same_name_elsewhere(const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& key : all_keys()) {
    if (name_of(key) == name) found.push_back(key);
  }
  return found.empty() ? "" : did_you_mean(fmt::format("{}", fmt::join(found, " or ")));
}

// The section that `name` stands for, or "".
std::string meant_section(const std::string& name) {
  for (const Alias& alias : kSectionAliases) {
    if (alias.name == name) return std::string(alias.key);
  }
  return nearest(name, all_sections());
}

bool is_key(const std::string& key) {
  return std::find(all_keys().begin(), all_keys().end(), key) != all_keys().end();
}

std::string nearest_key(const std::string& section, const std::string& name) {
  const std::string here = nearest(name, keys_of_section(section));
  if (!here.empty()) return did_you_mean(section + "." + here);
  std::vector<std::string> names;
  for (const std::string& key : all_keys()) names.push_back(name_of(key));
  const std::string anywhere = nearest(name, names);
  return anywhere.empty() ? "" : same_name_elsewhere(anywhere);
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: rows i-2, i-1 and i of the table.
  std::vector<size_t> two_up(b.size() + 1), up(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) up[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = up[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({up[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_up[j - 2] + 1);
      }
    }
    std::swap(two_up, up);
    std::swap(up, row);
  }
  return up[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::clamp<size_t>(word.size() / 3, 1, 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

const std::vector<std::string>& all_keys() {
  return collected().keys;
}
const std::vector<std::string>& all_sections() {
  return collected().sections;
}

std::vector<std::string> keys_of_section(std::string_view section) {
  std::vector<std::string> names;
  for (const std::string& key : all_keys()) {
    if (key.starts_with(std::string(section) + ".")) names.push_back(name_of(key));
  }
  return names;
}

std::string suggest_key(const std::string& unknown) {
  const size_t dot = unknown.find('.');
  const std::string section = dot == std::string::npos ? "" : normalized(unknown.substr(0, dot));
  const std::string name = normalized(name_of(unknown));
  if (name.find(':') != std::string::npos) return "Write a space after the colon";
  // eval.every of other trainers is train.eval_every here.
  const std::string joined = same_name_elsewhere(section + "_" + name);
  if (!joined.empty()) return joined;
  for (const Alias& alias : kAliases) {
    if (alias.name != name) continue;
    return alias.key.empty() ? std::string(alias.note) : did_you_mean(alias.key, alias.note);
  }
  const std::string meant = meant_section(section.empty() ? name : section);
  if (is_key(meant + "." + name)) return did_you_mean(meant + "." + name);
  const std::string elsewhere = same_name_elsewhere(name);
  if (!elsewhere.empty()) return elsewhere;
  if (section.empty() && !meant.empty()) return did_you_mean(meant);
  return nearest_key(meant, name);
}

}  // namespace heddle::config_internal
