#include "framework/config/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "framework/config/fields.h"
#include "framework/config/problem.h"
#include "framework/config/value.h"

namespace heddle {

using namespace config_internal;

namespace {

constexpr int64_t kMaxHeadDim = 256;    // what attention plugins may be asked for
constexpr int64_t kSmearChannels = 24;  // read by the smear gate
constexpr int64_t kValueChannels = 12;  // read by the gates of the value embeddings

class LimitChecker {
 public:
  template <class S>
  void section(std::string_view name, S& section, std::string_view) {
    section_ = name;
    visit_fields(section, *this);
  }
  template <class T>
  void field(std::string_view name, T& value, const Rule& rule, std::string_view) {
    const auto complaint = violation(value, rule);
    if (!complaint) return;
    const std::string key = fmt::format("{}.{}", section_, name);
    conflicts.push_back(
        {{key},
         fmt::format("{}: got {}, expected {}", key, complaint->got, expectation(value, rule)),
         complaint->remedy});
  }

  std::vector<ConfigConflict> conflicts;

 private:
  std::string section_;
};

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

// "model.n_embd: 120 or 128": the multiples of `step` around `value`.
std::string nearest_multiples(std::string_view key, int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  if (below == 0) return fmt::format("{}: {}", key, step);
  return fmt::format("{}: {} or {}", key, below, below + step);
}

void check_head_dim(const ModelConfig& m, std::vector<ConfigConflict>& out) {
  const std::vector<std::string> keys = {"model.n_embd", "model.n_head"};
  const std::string remedy = "Try " + nearest_multiples("model.n_embd", m.n_embd, 2 * m.n_head);
  if (m.n_embd % m.n_head != 0) {
    out.push_back(
        {keys,
         fmt::format("model.n_embd {} is not a multiple of model.n_head {}", m.n_embd, m.n_head),
         remedy});
    return;
  }
  const std::string head_dim = fmt::format("model.n_embd {} / model.n_head {} gives head_dim {}",
                                           m.n_embd, m.n_head, m.head_dim());
  if (m.head_dim() % 2 != 0) {
    out.push_back({keys, head_dim + ", which must be even for the rotary embedding", remedy});
  }
  if (m.head_dim() > kMaxHeadDim) {
    int64_t heads = m.n_head;
    while (m.n_embd % heads != 0 || m.n_embd / heads > kMaxHeadDim) ++heads;
    out.push_back({keys, fmt::format("{}, more than the largest, {}", head_dim, kMaxHeadDim),
                   fmt::format("Try model.n_head: {}", heads)});
  }
}

void check_model(const ModelConfig& m, std::vector<ConfigConflict>& out) {
  check_head_dim(m, out);
  if (m.n_head % m.kv_heads() != 0) {
    out.push_back({{"model.n_kv_head", "model.n_head"},
                   fmt::format("model.n_head {} is not a multiple of model.n_kv_head {}", m.n_head,
                               m.kv_heads()),
                   fmt::format("With {} heads model.n_kv_head can be {}", m.n_head,
                               fmt::join(divisors(m.n_head), ", "))});
  }
  const auto windows = static_cast<int64_t>(m.window_pattern.windows.size());
  if (windows > 1 && windows != m.n_layer) {
    out.push_back({{"model.window_pattern", "model.n_layer"},
                   fmt::format("model.window_pattern lists {} windows for model.n_layer {}",
                               windows, m.n_layer),
                   "List one window for all layers, or one per layer"});
  }
  if (m.smear && m.n_embd < kSmearChannels) {
    out.push_back({{"model.n_embd", "model.smear"},
                   fmt::format("model.smear is true and needs model.n_embd of at least {}, got {}",
                               kSmearChannels, m.n_embd),
                   "Set model.smear: false or widen the model"});
  }
  if (m.value_embeds && m.n_embd < kValueChannels) {
    out.push_back(
        {{"model.n_embd", "model.value_embeds"},
         fmt::format("model.value_embeds is true and needs model.n_embd of at least {}, got {}",
                     kValueChannels, m.n_embd),
         "Set model.value_embeds: false or widen the model"});
  }
}

void check_data(const DataConfig& d, std::vector<ConfigConflict>& out) {
  const bool has_path = !d.path.empty();
  if (d.kind == "recall" && has_path) {
    out.push_back({{"data.kind", "data.path"},
                   fmt::format("data.kind recall is generated and reads no file, but data.path is "
                               "{}",
                               d.path),
                   "Set data.kind: auto to read the file, or remove data.path"});
  } else if (d.kind != "auto" && d.kind != "recall" && !has_path) {
    out.push_back({{"data.kind", "data.path"},
                   fmt::format("data.kind {} reads files, but data.path is empty", d.kind),
                   "Set data.path to a file or folder"});
  }
  if (!has_path && !d.val_path.empty()) {
    out.push_back({{"data.val_path", "data.path"},
                   fmt::format("data.val_path is {}, but data.path is empty", d.val_path),
                   "Set data.path too: the embedded corpus brings its own validation stories"});
  }
}

void check_batch(const Config& c, std::vector<ConfigConflict>& out) {
  const int64_t tokens = c.train.total_batch_size;
  const int64_t length = c.model.sequence_len;
  if (tokens % length == 0) return;
  out.push_back({{"train.total_batch_size", "model.sequence_len"},
                 fmt::format("train.total_batch_size {} (tokens) is not a multiple of "
                             "model.sequence_len {}",
                             tokens, length),
                 "Try " + nearest_multiples("train.total_batch_size", tokens, length)});
}

void check_device(const DeviceConfig& d, std::vector<ConfigConflict>& out) {
  if (d.kind != "cpu" || d.precision != "bf16") return;
  out.push_back({{"device.precision", "device.kind"},
                 "device.precision bf16 is computed on CUDA only, but device.kind is cpu",
                 "Set device.precision: auto"});
}

// Sums of up to this many sequences are exact (Ops::add_exact).
constexpr int64_t kExactSequences = 1 << 14;

void check_reproducible(const Config& c, std::vector<ConfigConflict>& out) {
  if (!c.train.reproducible) return;
  if (c.dist.shard == "gradients") {
    out.push_back({{"train.reproducible", "dist.shard"},
                   "train.reproducible keeps the exact sums of all gradients on every rank, so "
                   "dist.shard gradients would save nothing",
                   "Set dist.shard: optimizer"});
  }
  const int64_t sequences = c.train.total_batch_size / c.model.sequence_len;
  if (sequences > kExactSequences) {
    out.push_back({{"train.reproducible", "train.total_batch_size"},
                   fmt::format("train.reproducible sums at most {} sequences exactly, but "
                               "train.total_batch_size {} is {} of them",
                               kExactSequences, c.train.total_batch_size, sequences),
                   "Lower train.total_batch_size"});
  }
}

}  // namespace

std::vector<ConfigConflict> find_conflicts(const Config& config) {
  LimitChecker limits;
  Config copy = config;  // visitors take sections by reference
  visit_sections(copy, limits);
  if (!limits.conflicts.empty()) return limits.conflicts;
  std::vector<ConfigConflict> out;
  check_model(config.model, out);
  check_data(config.data, out);
  check_batch(config, out);
  check_device(config.device, out);
  check_reproducible(config, out);
  return out;
}

void check_config(const Config& config) {
  std::vector<Problem> problems;
  for (const ConfigConflict& conflict : find_conflicts(config)) {
    problems.push_back({conflict.message, conflict.remedy});
  }
  if (!problems.empty()) throw to_error(problems);
}

std::vector<std::string> config_warnings(const Config& config) {
  std::vector<std::string> out;
  const TrainConfig& train = config.train;
  const OptimConfig& optim = config.optim;
  if (train.num_iterations > 0 && optim.warmup_steps >= train.num_iterations) {
    out.push_back(fmt::format(
        "optim.warmup_steps {} is not below train.num_iterations {}: the rates never reach their "
        "base values",
        optim.warmup_steps, train.num_iterations));
  }
  if (config.checkpoint.every == 0 && !config.checkpoint.at_end && train.num_iterations > 0) {
    out.push_back(
        "checkpoint.every is 0 and checkpoint.at_end is false: nothing of this run is saved");
  }
  return out;
}

void check_vocab(const Config& config, int64_t tokenizer_vocab, const std::string& tokenizer_name) {
  const Auto<int64_t>& vocab = config.model.vocab_size;
  if (!vocab || *vocab >= tokenizer_vocab) return;
  throw config_error(fmt::format("model.vocab_size is {}, but the tokenizer {} has {} ids", *vocab,
                                 tokenizer_name, tokenizer_vocab),
                     fmt::format("Set model.vocab_size: auto, or at least {}", tokenizer_vocab));
}

}  // namespace heddle
