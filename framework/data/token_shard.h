// llm.c token shards (llm.c: dev/data/data_common.py). Little-endian int32[256] header, then ids:
//   [0] magic  [1] version  [2] number of tokens n  [3..255] zero in llm.c, which ignores them
//   20240520, 1: n uint16    20240801, 7: n uint32
// Heddle's own shards add, readable by llm.c all the same: [3] vocabulary, [4] and [5] low and high
// half of hash64(tokenizer name).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "framework/core/file.h"
#include "framework/data/atomic_file.h"

namespace heddle {

inline constexpr int32_t kShardMagic16 = 20240520;
inline constexpr int32_t kShardMagic32 = 20240801;
inline constexpr int64_t kShardHeaderBytes = 1024;

// A shard mapped for reading.
class TokenShard {
 public:
  // Checks magic, version, count and file size; throws heddle::Error (environment) naming the file,
  // what it has and what was expected.
  explicit TokenShard(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  int64_t vocab_size() const { return vocab_size_; }           // 0: not stated
  uint64_t tokenizer_hash() const { return tokenizer_hash_; }  // 0: not stated

  // Ids [begin, begin + count) into `out`. Ids that do not fit an int32 come out negative.
  void read(int64_t begin, int64_t count, int32_t* out) const;
  // The ids as they lie in the file.
  std::string_view payload() const;

 private:
  std::string path_;
  MappedFile file_;
  int64_t size_ = 0;
  int width_ = 2;  // bytes of an id
  int64_t vocab_size_ = 0;
  uint64_t tokenizer_hash_ = 0;
};

// Writes a uint16 shard, which appears under its name when close() has returned.
class TokenShardWriter {
 public:
  // `tokens`: how many ids append() will bring, 1 to 2^31 - 1.
  TokenShardWriter(const std::string& path, int64_t tokens, std::string_view tokenizer,
                   int64_t vocab_size);

  void append(std::span<const uint16_t> ids);
  void close();
  uint32_t payload_crc() const { return crc_; }

 private:
  AtomicFile file_;
  int64_t expected_, written_ = 0;
  uint32_t crc_ = 0;
};

// MappedFile whose errors are about reading data. Refuses what is not a regular file.
MappedFile map_data_file(const std::string& path);

}  // namespace heddle
