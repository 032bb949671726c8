// Text files into token shards of bytes: a bos (256) before each document, then its bytes.
// Validation is the last ceil(val_fraction * bytes) bytes of the concatenated documents (King
// James: the last 220,221 of 4,404,412 at 0.05), or what `val` holds. A document that the cut falls
// into continues behind a bos of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/documents.h"

namespace heddle {

struct TextSources {
  TextFiles train;
  std::optional<TextFiles> val = std::nullopt;  // absent: the end of `train`
  double val_fraction = 0.05;                   // used when `val` is absent
};

struct WrittenShard {
  std::string path;
  int64_t tokens = 0;
  uint32_t crc = 0;  // crc32c of the ids
};

struct WrittenSplit {
  int64_t documents = 0;
  int64_t bytes = 0;  // of text; tokens are bytes + documents
  std::vector<WrittenShard> shards;
};

struct WrittenText {
  WrittenSplit train, val;
};

// Writes `<prefix>train_000000.bin` ... and `<prefix>val_000000.bin` ... of at most `shard_tokens`
// ids each. A split without bytes has no shards. Throws heddle::Error (environment) when the
// sources hold no text or a file cannot be read or written.
WrittenText write_text_shards(const TextSources& sources, const std::string& folder,
                              const std::string& prefix, int64_t shard_tokens = 100'000'000);

// The shards of `sources` in `cache_dir`, in a folder named by the content of the files and the
// settings. Whole ones are reused, damaged or missing ones are written again. Ranks may call this
// at the same time. Throws as write_text_shards().
struct CachedText {
  std::string folder;
  std::string key;  // 16 hex digits
  WrittenText text;
  bool reused = false;
};
CachedText cached_text_shards(const TextSources& sources, const std::string& cache_dir);

// `configured` as data.cache_dir gives it; "auto" is $XDG_CACHE_HOME/heddle, ~/.cache/heddle or,
// without a home, heddle-UID in the temporary folder.
std::string resolve_cache_dir(const std::string& configured);

}  // namespace heddle
