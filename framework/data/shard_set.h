// Token shards cut into windows of one length, numbered through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/token_shard.h"

namespace heddle {

class ShardSet {
 public:
  // Opens every shard and checks that all state the same vocabulary and tokenizer. `paths` is not
  // empty. Throws heddle::Error (environment) naming the shard.
  ShardSet(const std::vector<std::string>& paths, int64_t sequence_len);

  int64_t windows() const { return starts_.back(); }
  int64_t tokens() const;
  // What the shards state about themselves; 0 when nothing.
  int64_t vocab_size() const { return shards_.front().vocab_size(); }
  uint64_t tokenizer_hash() const { return shards_.front().tokenizer_hash(); }
  int32_t first_token() const;
  // Sizes, names and ends of the shards, for fingerprints.
  std::string identity() const;

  // The T + 1 ids from i T of the shard on, for window i within it: the first T into `tokens`, the
  // last T into `targets`. Ids must lie in [0, limit).
  void read(int64_t window, int64_t limit, int32_t* tokens, int32_t* targets) const;

 private:
  [[noreturn]] void bad_id(const TokenShard& shard, int64_t position, int64_t limit) const;

  int64_t sequence_len_;
  std::vector<TokenShard> shards_;
  std::vector<int64_t> starts_;  // windows before each shard, and the total
};

}  // namespace heddle
