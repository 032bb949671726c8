// What data.path and data.kind mean: which kind of data, in which files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "framework/config/config.h"

namespace heddle {

enum class DataKind { kRecall, kText, kJsonl, kTokens };

// As data.kind spells it.
std::string_view data_kind_name(DataKind kind);

// data.kind, or with `auto` the kind that data.path shows: recall when it is empty, else by the
// ending (.txt text, .jsonl jsonl, .bin tokens) of the file or of the files in the folder. Throws
// heddle::Error for a path that does not exist, holds no data or holds several kinds.
DataKind resolve_kind(const DataConfig& config);

// `path` itself if it is a file, else the files of that kind in the folder (not in folders below
// it), sorted by name. Never empty. `key` is the config key that named the path, for errors.
std::vector<std::string> data_files(const std::string& path, DataKind kind, std::string_view key);

}  // namespace heddle
