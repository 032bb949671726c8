#include "framework/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "framework/core/error.h"
#include "framework/core/rng.h"
#include "framework/data/permutation.h"
#include "framework/data/shard_set.h"
#include "framework/data/text_shards.h"

namespace heddle {
namespace {

// 4184192 -> "4,184,192"
std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

std::string digest(const std::string& text) {
  return fmt::format("{:016x}", hash64(text));
}

class RecallDataset : public Dataset {
 public:
  RecallDataset(uint64_t seed, int64_t sequence_len)
      : seed_(seed), corpus_(seed, sequence_len), tokenizer_(make_tokenizer("recall")) {}

  DataKind kind() const override { return DataKind::kRecall; }
  int64_t sequence_len() const override { return corpus_.sequence_len(); }
  int64_t train_sequences() const override { return kUnbounded; }
  void train_sequence(int64_t index, int32_t* tokens, int32_t* targets) const override {
    read(Split::kTrain, index, tokens, targets);
  }
  int64_t val_sequences() const override { return kUnbounded; }
  void val_sequence(int64_t i, int32_t* tokens, int32_t* targets) const override {
    read(Split::kVal, i, tokens, targets);
  }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::optional<int64_t> vocab_size() const override { return tokenizer_->vocab_size(); }
  std::string describe() const override {
    return fmt::format("recall: generated stories of {} tokens, vocabulary {}, seed {}",
                       sequence_len(), tokenizer_->vocab_size(), seed_);
  }
  std::string fingerprint() const override {
    return digest(fmt::format("recall 1 {} {}", seed_, sequence_len()));
  }
  const RecallCorpus* recall() const override { return &corpus_; }

 private:
  void read(Split split, int64_t index, int32_t* tokens, int32_t* targets) const {
    const auto length = static_cast<size_t>(sequence_len());
    thread_local std::vector<int32_t> story;
    story.resize(length + 1);
    corpus_.story(split, index, story.data(), nullptr);
    std::memcpy(tokens, story.data(), length * sizeof(int32_t));
    std::memcpy(targets, story.data() + 1, length * sizeof(int32_t));
  }

  uint64_t seed_;
  RecallCorpus corpus_;
  std::shared_ptr<Tokenizer> tokenizer_;
};

// Windows [first, first + count) of a set of shards.
struct Windows {
  std::shared_ptr<const ShardSet> set = nullptr;
  int64_t first = 0, count = 0;
};

struct TokenSource {
  DataKind kind;
  std::string path;           // as configured, for people
  std::string identity = {};  // of everything that decides what a window holds
  Windows train = {}, val = {};
  std::shared_ptr<Tokenizer> tokenizer = nullptr;
  std::optional<int64_t> vocab_size = std::nullopt;  // as the data state it
  bool windows_start_with_bos = false;
};

class TokenDataset : public Dataset {
 public:
  TokenDataset(TokenSource source, uint64_t seed, int64_t sequence_len, int64_t id_limit)
      : source_(std::move(source)), seed_(seed), sequence_len_(sequence_len), limit_(id_limit) {}

  DataKind kind() const override { return source_.kind; }
  int64_t sequence_len() const override { return sequence_len_; }
  int64_t train_sequences() const override { return source_.train.count; }
  void train_sequence(int64_t index, int32_t* tokens, int32_t* targets) const override {
    HEDDLE_CHECK(index >= 0, "sample indices start at 0");
    const int64_t n = source_.train.count;
    const Permutation order(n, seed_, fmt::format("data/epoch/{}", index / n));
    read(source_.train, order(index % n), tokens, targets);
  }
  int64_t val_sequences() const override { return source_.val.count; }
  void val_sequence(int64_t i, int32_t* tokens, int32_t* targets) const override {
    HEDDLE_CHECK(i >= 0 && i < source_.val.count, "validation sequence that does not exist");
    read(source_.val, i, tokens, targets);
  }
  const Tokenizer& tokenizer() const override { return *source_.tokenizer; }
  std::optional<int64_t> vocab_size() const override { return source_.vocab_size; }
  std::string describe() const override {
    return fmt::format(
        "{} {}: vocabulary {}, sequences of {}: {} for training ({} tokens), {} for validation",
        data_kind_name(source_.kind), source_.path,
        source_.vocab_size ? grouped(*source_.vocab_size) : "not stated", sequence_len_,
        grouped(source_.train.count), grouped(source_.train.count * sequence_len_),
        grouped(source_.val.count));
  }
  std::string fingerprint() const override {
    return digest(fmt::format("{}\n{} {} {} {}", source_.identity, seed_, sequence_len_,
                              source_.train.count, source_.val.count));
  }

 private:
  void read(const Windows& windows, int64_t i, int32_t* tokens, int32_t* targets) const {
    windows.set->read(windows.first + i, limit_, tokens, targets);
    if (source_.windows_start_with_bos) tokens[0] = source_.tokenizer->bos();
  }

  TokenSource source_;
  uint64_t seed_;
  int64_t sequence_len_, limit_;
};

bool is_val_shard(const std::string& path) {
  return std::filesystem::path(path).filename().string().find("_val_") != std::string::npos;
}

// The shards of data.path for each split; val is empty when the end of train serves.
struct ShardPaths {
  std::vector<std::string> train, val;
};

ShardPaths shard_paths(const DataConfig& config) {
  ShardPaths paths;
  paths.train = data_files(config.path, DataKind::kTokens, "data.path");
  if (std::filesystem::is_directory(config.path)) {
    const auto middle =
        std::stable_partition(paths.train.begin(), paths.train.end(),
                              [](const std::string& path) { return !is_val_shard(path); });
    paths.val.assign(middle, paths.train.end());
    paths.train.erase(middle, paths.train.end());
    if (paths.train.empty()) {
      throw environment_error("data",
                              fmt::format("data.path: all shards of {} are named for validation "
                                          "(*_val_*), expected some for training",
                                          config.path),
                              "add training shards, such as NAME_train_000001.bin");
    }
  }
  if (!config.val_path.empty()) {
    paths.val = data_files(config.val_path, DataKind::kTokens, "data.val_path");
  }
  return paths;
}

// Shards that state the tokenizer `bytes` decode as text; others show their ids. llm.c writes its
// end-of-text id before each document, so the first id of the first shard serves as bos.
std::shared_ptr<Tokenizer> shard_tokenizer(const std::string& first_shard) {
  const ShardSet shard({first_shard}, 1);
  if (shard.tokenizer_hash() == hash64("bytes")) return make_tokenizer("bytes");
  return make_tokenizer(fmt::format("ids:{}", std::max(0, shard.first_token())));
}

std::string first_shard(const ShardPaths& paths) {
  std::string first = *std::min_element(paths.train.begin(), paths.train.end());
  if (!paths.val.empty()) {
    // llm.c makes shard 0 the validation shard; the set's first document starts there.
    const auto name = [](const std::string& path) {
      return std::filesystem::path(path).filename().string();
    };
    const std::string val = *std::min_element(paths.val.begin(), paths.val.end());
    if (name(val).find("000000") != std::string::npos) first = val;
  }
  return first;
}

TokenSource open_shards(const DataConfig& config, int64_t sequence_len) {
  const ShardPaths paths = shard_paths(config);
  TokenSource source{.kind = DataKind::kTokens, .path = config.path};
  source.train.set = std::make_shared<ShardSet>(paths.train, sequence_len);
  source.train.count = source.train.set->windows();
  source.identity = "tokens\n" + source.train.set->identity();
  if (paths.val.empty()) {
    source.val = source.train;
    const double share = config.val_fraction * static_cast<double>(source.train.count);
    source.val.count = static_cast<int64_t>(std::ceil(share - 1e-6));
    source.train.count -= source.val.count;
    source.val.first = source.train.count;
  } else {
    source.val.set = std::make_shared<ShardSet>(paths.val, sequence_len);
    source.val.count = source.val.set->windows();
    source.identity += "val\n" + source.val.set->identity();
  }
  source.tokenizer = shard_tokenizer(first_shard(paths));
  source.windows_start_with_bos = source.tokenizer->name() == "bytes";
  if (const int64_t stated = source.train.set->vocab_size(); stated > 0) source.vocab_size = stated;
  return source;
}

TextFiles text_files(const DataConfig& config, DataKind kind, const std::string& path,
                     std::string_view key) {
  const TextFormat format = kind == DataKind::kJsonl         ? TextFormat::kJsonl
                            : config.document == "paragraph" ? TextFormat::kParagraph
                                                             : TextFormat::kFile;
  return {format, data_files(path, kind, key)};
}

Windows open_windows(const WrittenSplit& split, int64_t sequence_len) {
  if (split.shards.empty()) return {};
  std::vector<std::string> paths;
  for (const WrittenShard& shard : split.shards) paths.push_back(shard.path);
  Windows windows{.set = std::make_shared<ShardSet>(paths, sequence_len)};
  windows.count = windows.set->windows();
  return windows;
}

TokenSource open_text(const DataConfig& config, DataKind kind, int64_t sequence_len) {
  TextSources sources{.train = text_files(config, kind, config.path, "data.path"),
                      .val_fraction = config.val_fraction};
  if (!config.val_path.empty()) {
    sources.val = text_files(config, kind, config.val_path, "data.val_path");
  }
  const CachedText cached = cached_text_shards(sources, resolve_cache_dir(config.cache_dir));
  TokenSource source{.kind = kind, .path = config.path, .identity = "text " + cached.key};
  source.train = open_windows(cached.text.train, sequence_len);
  source.val = open_windows(cached.text.val, sequence_len);
  source.tokenizer = make_tokenizer("bytes");
  source.vocab_size = source.tokenizer->vocab_size();
  source.windows_start_with_bos = true;
  return source;
}

// Both splits must hold a whole sequence; without validation data only if that was asked for.
void check_lengths(const TokenSource& source, const DataConfig& config, int64_t sequence_len) {
  const auto tokens = [](const Windows& w) { return w.set == nullptr ? 0 : w.set->tokens(); };
  const bool shared = source.train.set == source.val.set;
  const int64_t train_tokens =
      tokens(source.train) - (shared ? source.val.count * sequence_len : 0);
  if (source.train.count < 1) {
    throw Error(
        ExitCode::kConfig, "data",
        fmt::format("the sequence is longer than the data: {} holds {} tokens for training, "
                    "expected at least {} for one sequence of {}",
                    config.path, grouped(train_tokens), grouped(sequence_len + 1),
                    grouped(sequence_len)),
        "set model.sequence_len to less, or data.path to more text");
  }
  const bool wanted = !config.val_path.empty() || config.val_fraction > 0;
  if (!wanted || source.val.count > 0) return;
  throw Error(
      ExitCode::kConfig, "data",
      fmt::format("the sequence is longer than the validation data: they hold {} tokens, "
                  "expected at least {} for one sequence of {}",
                  grouped(tokens(source.val)), grouped(sequence_len + 1), grouped(sequence_len)),
      "set model.sequence_len to less, data.val_fraction to more, data.val_path to a "
      "longer file, or data.val_fraction=0 for no validation");
}

void check_vocabulary(const TokenSource& source, std::optional<int64_t> vocab_size) {
  if (!vocab_size || !source.vocab_size || *vocab_size >= *source.vocab_size) return;
  throw Error(ExitCode::kConfig, "data",
              fmt::format("model.vocab_size is {}, but {} uses {} ids", *vocab_size, source.path,
                          *source.vocab_size),
              fmt::format("set model.vocab_size=auto or at least {}", *source.vocab_size));
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DataConfig& config, int64_t sequence_len,
                                      std::optional<int64_t> vocab_size) {
  const auto seed = static_cast<uint64_t>(config.seed);
  const DataKind kind = resolve_kind(config);
  if (kind == DataKind::kRecall) return std::make_unique<RecallDataset>(seed, sequence_len);
  TokenSource source = kind == DataKind::kTokens ? open_shards(config, sequence_len)
                                                 : open_text(config, kind, sequence_len);
  check_lengths(source, config, sequence_len);
  check_vocabulary(source, vocab_size);
  const int64_t limit =
      source.vocab_size.value_or(vocab_size.value_or(std::numeric_limits<int32_t>::max()));
  return std::make_unique<TokenDataset>(std::move(source), seed, sequence_len, limit);
}

DataVocabulary data_vocabulary(const DataConfig& config) {
  const DataKind kind = resolve_kind(config);
  if (kind == DataKind::kTokens) {
    const ShardPaths paths = shard_paths(config);
    const int64_t stated = TokenShard(paths.train.front()).vocab_size();
    return {shard_tokenizer(first_shard(paths)),
            stated > 0 ? std::optional<int64_t>(stated) : std::nullopt};
  }
  auto tokenizer = make_tokenizer(kind == DataKind::kRecall ? "recall" : "bytes");
  const int64_t size = tokenizer->vocab_size();
  return {std::move(tokenizer), size};
}

Share rank_share(int64_t count, int rank, int world) {
  HEDDLE_CHECK(count >= 0 && world > 0 && rank >= 0 && rank < world, "rank outside the world");
  const int64_t each = count / world, larger = count % world;
  return {rank * each + std::min<int64_t>(rank, larger), each + (rank < larger ? 1 : 0)};
}

}  // namespace heddle
