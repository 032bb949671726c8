// The cache half of text_shards.h. A folder of shards is complete when its manifest, written last,
// is there and every shard has the size and checksum that the manifest states.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/json.h"
#include "framework/core/rng.h"
#include "framework/data/atomic_file.h"
#include "framework/data/text_shards.h"
#include "framework/data/token_shard.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
// Part of every key: raise it when the way text becomes shards changes.
constexpr int kLayout = 1;

std::string content_of(const TextFiles& files) {
  std::string out = fmt::format("format {}\n", static_cast<int>(files.format));
  for (const std::string& path : files.paths) {
    const MappedFile file = map_data_file(path);
    out += fmt::format("{} {:08x}\n", file.size(), crc32c(file.data(), file.size()));
  }
  return out;
}

std::string cache_key(const TextSources& sources) {
  std::string text = fmt::format("bytes {}\n", kLayout) + content_of(sources.train);
  text += sources.val.has_value() ? "val\n" + content_of(*sources.val)
                                  : fmt::format("tail {}\n", sources.val_fraction);
  return fmt::format("{:016x}", hash64(text));
}

json::value to_json(const WrittenSplit& split) {
  json::array shards;
  for (const WrittenShard& shard : split.shards) {
    shards.push_back(json::object{{"file", fs::path(shard.path).filename().string()},
                                  {"tokens", shard.tokens},
                                  {"crc32c", shard.crc}});
  }
  return json::object{
      {"documents", split.documents}, {"bytes", split.bytes}, {"shards", std::move(shards)}};
}

// Throws what Boost.JSON throws when a member is missing or of another type.
WrittenSplit from_json(const json::value& value, const std::string& folder) {
  WrittenSplit split;
  split.documents = value.at("documents").to_number<int64_t>();
  split.bytes = value.at("bytes").to_number<int64_t>();
  for (const json::value& shard : value.at("shards").as_array()) {
    split.shards.push_back({folder + "/" + std::string(shard.at("file").as_string()),
                            shard.at("tokens").to_number<int64_t>(),
                            shard.at("crc32c").to_number<uint32_t>()});
  }
  return split;
}

bool is_whole(const WrittenSplit& split) {
  for (const WrittenShard& written : split.shards) {
    const TokenShard shard(written.path);
    if (shard.size() != written.tokens) return false;
    if (crc32c(shard.payload().data(), shard.payload().size()) != written.crc) return false;
  }
  return true;
}

// What `folder` holds, if all of it is as it was written.
std::optional<WrittenText> load(const std::string& folder) {
  try {
    if (!fs::exists(folder + "/" + kManifest)) return std::nullopt;
    const json::value manifest = json::read_file(folder + "/" + kManifest);
    WrittenText text{from_json(manifest.at("train"), folder),
                     from_json(manifest.at("val"), folder)};
    if (is_whole(text.train) && is_whole(text.val)) return text;
  } catch (const std::exception&) {
    // Damaged in whatever way: the caller writes it again.
  }
  return std::nullopt;
}

void write_manifest(const WrittenText& text, const std::string& folder) {
  const std::string contents =
      json::pretty(json::object{{"train", to_json(text.train)}, {"val", to_json(text.val)}});
  AtomicFile file(folder + "/" + kManifest);
  file.write(contents.data(), contents.size());
  file.commit();
}

}  // namespace

CachedText cached_text_shards(const TextSources& sources, const std::string& cache_dir) {
  CachedText out;
  out.key = cache_key(sources);
  out.folder = cache_dir + "/" + out.key;
  if (auto text = load(out.folder)) {
    out.text = std::move(*text);
    out.reused = true;
    return out;
  }
  try {
    out.text = write_text_shards(sources, out.folder, "");
    write_manifest(out.text, out.folder);
  } catch (const Error& e) {
    if (e.area() != "file") throw;
    throw environment_error("data", "the token cache cannot be written: " + e.message(),
                            "set data.cache_dir to a folder that can be written and has room");
  }
  return out;
}

std::string resolve_cache_dir(const std::string& configured) {
  if (configured != "auto") return configured;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/heddle";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/heddle";
  return fmt::format("{}/heddle-{}", fs::temp_directory_path().string(), getuid());
}

}  // namespace heddle
