#include "framework/data/text_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/crc32c.h"
#include "framework/data/token_shard.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::ElementsAre;
using Ids = std::vector<int32_t>;

Ids ids(const WrittenSplit& split) {
  Ids out;
  for (const WrittenShard& written : split.shards) {
    const TokenShard shard(written.path);
    EXPECT_EQ(shard.size(), written.tokens);
    EXPECT_EQ(crc32c(shard.payload().data(), shard.payload().size()), written.crc);
    Ids part(static_cast<size_t>(shard.size()));
    shard.read(0, shard.size(), part.data());
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

TEST(TextShardsTest, CutsTheTailOffForValidation) {
  const test::TempFolder folder;
  const auto path = folder.write("a.txt", "abcdefghij");
  // ceil(0.15 * 10) = 2
  const auto text = write_text_shards({.train = {TextFormat::kFile, {path}}, .val_fraction = 0.15},
                                      folder.path("out"), "x_");
  EXPECT_THAT(ids(text.train), ElementsAre(256, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'));
  EXPECT_THAT(ids(text.val), ElementsAre(256, 'i', 'j'));
  EXPECT_EQ(text.train.bytes, 8);
  EXPECT_EQ(text.val.documents, 1);
  EXPECT_THAT(folder.files(), ElementsAre("a.txt", "x_train_000000.bin", "x_val_000000.bin"));
}

TEST(TextShardsTest, KingJamesKeepsItsLast220221Bytes) {
  const test::TempFolder folder;
  const auto path = folder.write("a.txt", std::string(4404412, 'x'));
  const auto text =
      write_text_shards({.train = {TextFormat::kFile, {path}}}, folder.path("out"), "");
  EXPECT_EQ(text.val.bytes, 220221);
  EXPECT_EQ(text.train.bytes, 4404412 - 220221);
}

TEST(TextShardsTest, AWholeProductIsNotRoundedUp) {
  const test::TempFolder folder;
  const auto path = folder.write("a.txt", std::string(100, 'x'));
  // 0.07 * 100 is 7.000000000000001 in binary.
  const auto text = write_text_shards({.train = {TextFormat::kFile, {path}}, .val_fraction = 0.07},
                                      folder.path("out"), "");
  EXPECT_EQ(text.val.bytes, 7);
}

TEST(TextShardsTest, BosStandsBeforeEachDocumentAndBehindTheCut) {
  const test::TempFolder folder;
  const auto path = folder.write("a.txt", "ab\n\ncdef\n\ngh");
  const TextSources sources{.train = {TextFormat::kParagraph, {path}}, .val_fraction = 0.5};
  const auto text = write_text_shards(sources, folder.path("out"), "");
  EXPECT_THAT(ids(text.train), ElementsAre(256, 'a', 'b', 256, 'c', 'd'));
  EXPECT_THAT(ids(text.val), ElementsAre(256, 'e', 'f', 256, 'g', 'h'));
}

TEST(TextShardsTest, ACutBetweenDocumentsAddsNoBos) {
  const test::TempFolder folder;
  const auto path = folder.write("a.txt", "ab\n\ncd");
  const TextSources sources{.train = {TextFormat::kParagraph, {path}}, .val_fraction = 0.5};
  const auto text = write_text_shards(sources, folder.path("out"), "");
  EXPECT_THAT(ids(text.train), ElementsAre(256, 'a', 'b'));
  EXPECT_THAT(ids(text.val), ElementsAre(256, 'c', 'd'));
}

TEST(TextShardsTest, ValidationFilesReplaceTheTail) {
  const test::TempFolder folder;
  const auto train = folder.write("a.txt", "abc"), val = folder.write("b.txt", "xy");
  const auto text = write_text_shards(
      {.train = {TextFormat::kFile, {train}}, .val = TextFiles{TextFormat::kFile, {val}}},
      folder.path("out"), "");
  EXPECT_THAT(ids(text.train), ElementsAre(256, 'a', 'b', 'c'));
  EXPECT_THAT(ids(text.val), ElementsAre(256, 'x', 'y'));
}

TEST(TextShardsTest, ManyShardsHoldTheSameTokens) {
  const test::TempFolder folder;
  std::string contents;
  for (int i = 0; i < 100000; ++i) contents += static_cast<char>('a' + i % 1009 % 23);
  const auto path = folder.write("a.txt", contents);
  const TextSources sources{.train = {TextFormat::kFile, {path}}, .val_fraction = 0};
  const auto one = write_text_shards(sources, folder.path("one"), "");
  const auto many = write_text_shards(sources, folder.path("many"), "", 30000);
  EXPECT_EQ(many.train.shards.size(), 4u);
  for (const auto& shard : many.train.shards) EXPECT_NEAR(shard.tokens, 25000, 1);
  EXPECT_EQ(ids(many.train), ids(one.train));
  EXPECT_TRUE(many.val.shards.empty());
}

TEST(TextShardsTest, NoTextIsAnError) {
  const test::TempFolder folder;
  const auto empty = folder.write("empty.txt", ""), blank = folder.write("blank.txt", "\n \n"),
             good = folder.write("good.txt", "x");
  expect_error(ExitCode::kEnvironment, {empty, "no text"}, [&] {
    write_text_shards({.train = {TextFormat::kFile, {empty}}}, folder.path("out"), "");
  });
  expect_error(ExitCode::kEnvironment, {blank, "1 more"}, [&] {
    write_text_shards({.train = {TextFormat::kParagraph, {blank, empty}}}, folder.path("out"), "");
  });
  expect_error(ExitCode::kEnvironment, {empty, "data.val_path"}, [&] {
    write_text_shards(
        {.train = {TextFormat::kFile, {good}}, .val = TextFiles{TextFormat::kFile, {empty}}},
        folder.path("out"), "");
  });
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

}  // namespace
}  // namespace heddle
