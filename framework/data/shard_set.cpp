#include "framework/data/shard_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "framework/core/crc32c.h"
#include "framework/core/error.h"

namespace heddle {

ShardSet::ShardSet(const std::vector<std::string>& paths, int64_t sequence_len)
    : sequence_len_(sequence_len), starts_{0} {
  for (const std::string& path : paths) {
    const TokenShard& shard = shards_.emplace_back(path);
    const TokenShard& first = shards_.front();
    if (shard.vocab_size() != first.vocab_size() ||
        shard.tokenizer_hash() != first.tokenizer_hash()) {
      throw environment_error(
          "data",
          fmt::format("{} was written with another tokenizer (vocabulary {}) than {} "
                      "(vocabulary {})",
                      path, shard.vocab_size(), first.path(), first.vocab_size()),
          "keep shards of one tokenizer in a folder");
    }
    starts_.push_back(starts_.back() + (shard.size() - 1) / sequence_len);
  }
}

int64_t ShardSet::tokens() const {
  int64_t total = 0;
  for (const TokenShard& shard : shards_) total += shard.size();
  return total;
}

int32_t ShardSet::first_token() const {
  int32_t id = 0;
  shards_.front().read(0, 1, &id);
  return id;
}

std::string ShardSet::identity() const {
  constexpr size_t kSample = 1 << 16;
  std::string out;
  for (const TokenShard& shard : shards_) {
    const std::string_view ids = shard.payload();
    const size_t n = std::min(kSample, ids.size());
    uint32_t crc = crc32c(ids.data(), n);
    crc = crc32c(ids.data() + ids.size() - n, n, crc);
    out += fmt::format("{} {} {:08x}\n", std::filesystem::path(shard.path()).filename().string(),
                       ids.size(), crc);
  }
  return out;
}

void ShardSet::read(int64_t window, int64_t limit, int32_t* tokens, int32_t* targets) const {
  HEDDLE_CHECK(window >= 0 && window < windows(), "window outside the data");
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), window);
  const auto i = static_cast<size_t>(after - starts_.begin() - 1);
  const TokenShard& shard = shards_[i];
  const int64_t begin = (window - starts_[i]) * sequence_len_;
  shard.read(begin, sequence_len_, tokens);
  shard.read(begin + 1, sequence_len_, targets);
  if (tokens[0] < 0 || tokens[0] >= limit) bad_id(shard, begin, limit);
  for (int64_t t = 0; t < sequence_len_; ++t) {
    if (targets[t] < 0 || targets[t] >= limit) bad_id(shard, begin + 1 + t, limit);
  }
}

void ShardSet::bad_id(const TokenShard& shard, int64_t position, int64_t limit) const {
  int32_t id = 0;
  shard.read(position, 1, &id);
  throw environment_error(
      "data",
      fmt::format("{}: token {} is id {}, expected ids from 0 to {}", shard.path(), position,
                  static_cast<uint32_t>(id), limit - 1),
      "set model.vocab_size to that of the tokenizer that wrote the shards, or write them again");
}

}  // namespace heddle
