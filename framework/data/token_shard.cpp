#include "framework/data/token_shard.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>

#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/rng.h"

namespace heddle {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

constexpr int kHeaderInts = kShardHeaderBytes / 4;
using Header = std::array<uint32_t, kHeaderInts>;

Error bad_shard(const std::string& path, const std::string& what, std::string remedy) {
  return environment_error("data", fmt::format("{} is not a token shard: {}", path, what),
                           std::move(remedy));
}

}  // namespace

MappedFile map_data_file(const std::string& path) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!ec && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw environment_error("data", "cannot read " + path + ": it is not a regular file",
                            "set data.path to a file or a folder of files");
  }
  try {
    return MappedFile(path);
  } catch (const Error& e) {
    throw environment_error("data", e.message(),
                            "check data.path and that this user may read the file");
  }
}

TokenShard::TokenShard(const std::string& path) : path_(path), file_(map_data_file(path)) {
  const auto bytes = static_cast<int64_t>(file_.size());
  const std::string rebuild = "write the shard again (heddle tokenize does) or remove it";
  if (bytes < kShardHeaderBytes) {
    throw bad_shard(path,
                    fmt::format("the file has {} bytes, expected a header of {} bytes", bytes,
                                kShardHeaderBytes),
                    rebuild);
  }
  Header header;
  std::memcpy(header.data(), file_.data(), kShardHeaderBytes);
  const auto magic = static_cast<int32_t>(header[0]);
  if (magic != kShardMagic16 && magic != kShardMagic32) {
    throw bad_shard(path,
                    fmt::format("it starts with {}, expected {} (uint16) or {} (uint32)", magic,
                                kShardMagic16, kShardMagic32),
                    "set data.path to llm.c token shards, or set data.kind if it is text");
  }
  const uint32_t version = magic == kShardMagic16 ? 1 : 7;
  if (header[1] != version) {
    throw bad_shard(path,
                    fmt::format("version {} with magic {}, expected {}", header[1], magic, version),
                    rebuild);
  }
  width_ = magic == kShardMagic16 ? 2 : 4;
  size_ = header[2];
  if (size_ == 0) throw bad_shard(path, "its header states 0 tokens, expected some", rebuild);
  const int64_t expected = kShardHeaderBytes + width_ * size_;
  if (bytes != expected) {
    throw bad_shard(
        path,
        fmt::format("the file has {} bytes, expected {} for the {} tokens that its "
                    "header states ({})",
                    bytes, expected, size_, bytes < expected ? "cut short" : "bytes left over"),
        rebuild);
  }
  vocab_size_ = header[3];
  tokenizer_hash_ = uint64_t{header[5]} << 32 | header[4];
}

std::string_view TokenShard::payload() const {
  return file_.text().substr(static_cast<size_t>(kShardHeaderBytes));
}

void TokenShard::read(int64_t begin, int64_t count, int32_t* out) const {
  HEDDLE_CHECK(begin >= 0 && count >= 0 && begin + count <= size_, "read outside the shard");
  const unsigned char* ids = file_.data() + kShardHeaderBytes + begin * width_;
  if (width_ == 4) {
    std::memcpy(out, ids, static_cast<size_t>(count) * 4);
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = ids[2 * i] | ids[2 * i + 1] << 8;
}

TokenShardWriter::TokenShardWriter(const std::string& path, int64_t tokens,
                                   std::string_view tokenizer, int64_t vocab_size)
    : file_(path), expected_(tokens) {
  HEDDLE_CHECK(tokens > 0 && tokens <= INT32_MAX, "llm.c counts tokens in an int32");
  const uint64_t hash = hash64(tokenizer);
  Header header{};
  header[0] = static_cast<uint32_t>(kShardMagic16);
  header[1] = 1;
  header[2] = static_cast<uint32_t>(tokens);
  header[3] = static_cast<uint32_t>(vocab_size);
  header[4] = static_cast<uint32_t>(hash);
  header[5] = static_cast<uint32_t>(hash >> 32);
  file_.write(header.data(), sizeof(header));
}

void TokenShardWriter::append(std::span<const uint16_t> ids) {
  written_ += static_cast<int64_t>(ids.size());
  HEDDLE_CHECK(written_ <= expected_, "more tokens than the header states");
  file_.write(ids.data(), ids.size_bytes());
  crc_ = crc32c(ids.data(), ids.size_bytes(), crc_);
}

void TokenShardWriter::close() {
  HEDDLE_CHECK(written_ == expected_, "fewer tokens than the header states");
  file_.commit();
}

}  // namespace heddle
