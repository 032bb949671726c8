#include "framework/data/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "framework/core/rng.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::ElementsAre;

// The layout as llm.c's data_common.py writes it, byte by byte.
std::string published(std::string_view magic_version_count, std::string_view payload) {
  std::string file(magic_version_count);
  file.resize(1024, '\0');
  return file + std::string(payload);
}

const std::string kHeader3("\x88\xd8\x34\x01\x01\x00\x00\x00\x03\x00\x00\x00", 12);
const std::string kIds3("\x50\xc4\xd0\x01\xff\xff", 6);  // 50256, 464, 65535

std::vector<int32_t> all(const TokenShard& shard) {
  std::vector<int32_t> ids(static_cast<size_t>(shard.size()));
  shard.read(0, shard.size(), ids.data());
  return ids;
}

TEST(TokenShardTest, ReadsThePublishedUint16Layout) {
  const test::TempFolder folder;
  const TokenShard shard(folder.write("a.bin", published(kHeader3, kIds3)));
  EXPECT_EQ(shard.vocab_size(), 0);
  EXPECT_EQ(shard.tokenizer_hash(), 0u);
  EXPECT_THAT(all(shard), ElementsAre(50256, 464, 65535));
}

TEST(TokenShardTest, ReadsThePublishedUint32Layout) {
  const test::TempFolder folder;
  const std::string header("\xa1\xd9\x34\x01\x07\x00\x00\x00\x02\x00\x00\x00", 12);
  const std::string ids("\x00\xf4\x01\x00\x05\x00\x00\x00", 8);  // 128000, 5
  const TokenShard shard(folder.write("a.bin", published(header, ids)));
  EXPECT_THAT(all(shard), ElementsAre(128000, 5));
}

TEST(TokenShardTest, WritesTheSameBytesAndItsExtension) {
  const test::TempFolder folder;
  const std::string path = folder.path("out.bin");
  const std::array<uint16_t, 3> ids = {50256, 464, 65535};
  TokenShardWriter writer(path, 3, "bytes", 257);
  writer.append(std::span(ids).first(1));
  EXPECT_FALSE(std::filesystem::exists(path)) << "nothing under the final name before close()";
  writer.append(std::span(ids).subspan(1));
  writer.close();
  const std::string file = test::get_file(path);
  EXPECT_EQ(file.substr(0, 12), kHeader3);
  EXPECT_EQ(file.substr(1024), kIds3);
  EXPECT_EQ(file.substr(24, 1000), std::string(1000, '\0'));
  const TokenShard shard(path);
  EXPECT_EQ(shard.vocab_size(), 257);
  EXPECT_EQ(shard.tokenizer_hash(), hash64("bytes"));
}

TEST(TokenShardTest, AnAbandonedWriterLeavesNothing) {
  const test::TempFolder folder;
  {
    TokenShardWriter writer(folder.path("out.bin"), 3, "bytes", 257);
    const std::array<uint16_t, 1> ids = {1};
    writer.append(ids);
  }
  EXPECT_THAT(folder.files(), testing::IsEmpty());
}

TEST(TokenShardTest, RefusesWhatIsNoShard) {
  const test::TempFolder folder;
  const auto refuse = [&](const std::string& contents, std::vector<std::string> parts) {
    const std::string path = folder.write("bad.bin", contents);
    parts.push_back(path);
    expect_error(ExitCode::kEnvironment, parts, [&] { const TokenShard shard(path); });
  };
  const std::string good = published(kHeader3, kIds3);
  refuse("", {"0 bytes", "1024"});
  refuse(good.substr(0, 1000), {"1000 bytes", "1024"});
  refuse(good.substr(0, 1028), {"1028 bytes", "1030", "3 tokens", "cut short"});
  refuse(good + "x", {"1031 bytes", "1030", "left over"});
  refuse(published(std::string("\0\0\0\0\1\0\0\0\3\0\0\0", 12), kIds3), {"20240520", "20240801"});
  refuse(published(std::string("\x88\xd8\x34\x01\x02\x00\x00\x00\x03\x00\x00\x00", 12), kIds3),
         {"version 2", "expected 1"});
  refuse(published(std::string("\x88\xd8\x34\x01\x01\x00\x00\x00\x00\x00\x00\x00", 12), ""),
         {"0 tokens"});
}

TEST(TokenShardTest, RefusesWhatIsNoFile) {
  const test::TempFolder folder;
  expect_error(ExitCode::kEnvironment, {"no such.bin", "No such file"},
               [&] { const TokenShard shard(folder.path("no such.bin")); });
  expect_error(ExitCode::kEnvironment, {"/dev/null", "not a regular file"},
               [] { const TokenShard shard("/dev/null"); });
}

}  // namespace
}  // namespace heddle
