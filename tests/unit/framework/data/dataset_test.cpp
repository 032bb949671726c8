#include "framework/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "framework/data/token_shard.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

struct Sequence {
  Ids tokens, targets;
  bool operator==(const Sequence&) const = default;
  bool operator<(const Sequence& other) const { return targets < other.targets; }
};

Sequence train(const Dataset& data, int64_t i) {
  const auto length = static_cast<size_t>(data.sequence_len());
  Sequence s{Ids(length), Ids(length)};
  data.train_sequence(i, s.tokens.data(), s.targets.data());
  return s;
}

Sequence val(const Dataset& data, int64_t i) {
  const auto length = static_cast<size_t>(data.sequence_len());
  Sequence s{Ids(length), Ids(length)};
  data.val_sequence(i, s.tokens.data(), s.targets.data());
  return s;
}

// A text in which every window of four or more differs.
std::string counting_text(int numbers) {
  std::string text;
  for (int i = 0; i < numbers; ++i) text += std::to_string(1000 + i);
  return text;
}

class DatasetTest : public testing::Test {
 protected:
  DataConfig config(const std::string& path) const {
    DataConfig c;
    c.path = path;
    c.cache_dir = folder_.path("cache");
    return c;
  }
  // A shard as llm.c writes it, without Heddle's extension.
  std::string shard(const std::string& name, const std::vector<uint16_t>& ids) const {
    std::string file("\x88\xd8\x34\x01\x01\x00\x00\x00", 8);
    const auto n = static_cast<uint32_t>(ids.size());
    file.append(reinterpret_cast<const char*>(&n), 4);
    file.resize(1024, '\0');
    file.append(reinterpret_cast<const char*>(ids.data()), ids.size() * 2);
    return folder_.write(name, file);
  }
  static std::vector<uint16_t> range(int from, int count) {
    std::vector<uint16_t> ids;
    for (int i = 0; i < count; ++i) ids.push_back(static_cast<uint16_t>(from + i));
    return ids;
  }

  test::TempFolder folder_;
};

TEST_F(DatasetTest, TextWindowsStartWithBosAndCoverTheTextInOrder) {
  auto c = config(folder_.write("a.txt", "abcdefghijklm"));
  c.val_fraction = 0.5;  // 7 of 13
  const auto data = open_dataset(c, 3);
  EXPECT_EQ(data->kind(), DataKind::kText);
  EXPECT_EQ(data->train_sequences(), 2);
  EXPECT_EQ(data->val_sequences(), 2);
  EXPECT_EQ(data->vocab_size(), 257);
  EXPECT_EQ(data->tokenizer().name(), "bytes");
  EXPECT_EQ(val(*data, 0), (Sequence{{256, 'g', 'h'}, {'g', 'h', 'i'}}));
  EXPECT_EQ(val(*data, 1), (Sequence{{256, 'j', 'k'}, {'j', 'k', 'l'}}));
  const std::set<Sequence> epoch = {train(*data, 0), train(*data, 1)};
  EXPECT_THAT(epoch, ElementsAre(Sequence{{256, 'a', 'b'}, {'a', 'b', 'c'}},
                                 Sequence{{256, 'd', 'e'}, {'d', 'e', 'f'}}));
}

TEST_F(DatasetTest, EverySampleAppearsOnceAnEpochInAnotherOrder) {
  const auto data = open_dataset(config(folder_.write("a.txt", counting_text(1000))), 16);
  const int64_t n = data->train_sequences();
  ASSERT_GT(n, 200);
  std::vector<std::vector<Sequence>> epochs(3);
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t i = 0; i < n; ++i) {
      epochs[static_cast<size_t>(e)].push_back(train(*data, e * n + i));
    }
  }
  const std::set<Sequence> first(epochs[0].begin(), epochs[0].end());
  EXPECT_EQ(static_cast<int64_t>(first.size()), n);
  EXPECT_EQ(std::set<Sequence>(epochs[1].begin(), epochs[1].end()), first);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST_F(DatasetTest, AResumedRunReadsWhatItWouldHaveRead) {
  const auto c = config(folder_.write("a.txt", counting_text(1000)));
  const auto whole = open_dataset(c, 16);
  std::vector<Sequence> all;
  for (int64_t i = 0; i < 600; ++i) all.push_back(train(*whole, i));
  const auto resumed = open_dataset(c, 16);
  for (int64_t i = 599; i >= 300; --i) EXPECT_EQ(train(*resumed, i), all[static_cast<size_t>(i)]);
  EXPECT_EQ(resumed->fingerprint(), whole->fingerprint());
}

TEST_F(DatasetTest, RanksTogetherReadTheGlobalBatch) {
  const auto data = open_dataset(config(folder_.write("a.txt", counting_text(500))), 16);
  constexpr int64_t kBatch = 8;
  for (int world = 1; world <= 10; ++world) {
    for (int64_t step = 0; step < 5; ++step) {
      std::vector<Sequence> read;
      for (int rank = 0; rank < world; ++rank) {
        const Share share = rank_share(kBatch, rank, world);
        for (int64_t i = 0; i < share.count; ++i) {
          read.push_back(train(*data, step * kBatch + share.begin + i));
        }
      }
      ASSERT_EQ(static_cast<int64_t>(read.size()), kBatch);
      for (int64_t i = 0; i < kBatch; ++i) {
        EXPECT_EQ(read[static_cast<size_t>(i)], train(*data, step * kBatch + i));
      }
    }
  }
}

TEST(RankShareTest, DiffersByAtMostOne) {
  EXPECT_EQ(rank_share(8, 0, 3).count, 3);
  EXPECT_EQ(rank_share(8, 1, 3).count, 3);
  EXPECT_EQ(rank_share(8, 2, 3).count, 2);
  EXPECT_EQ(rank_share(8, 2, 3).begin, 6);
  EXPECT_EQ(rank_share(2, 3, 4).count, 0);
  for (int64_t count = 0; count < 40; ++count) {
    for (int world = 1; world < 9; ++world) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Share share = rank_share(count, rank, world);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.count - count / world, 1);
        EXPECT_GE(share.count, count / world);
        next += share.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST_F(DatasetTest, TheSeedDecidesTheOrderAndNothingElse) {
  auto c = config(folder_.write("a.txt", counting_text(500)));
  const auto one = open_dataset(c, 16);
  c.seed = 2;
  const auto two = open_dataset(c, 16);
  std::set<Sequence> a, b;
  int same = 0;
  for (int64_t i = 0; i < one->train_sequences(); ++i) {
    same += train(*one, i) == train(*two, i) ? 1 : 0;
    a.insert(train(*one, i));
    b.insert(train(*two, i));
  }
  EXPECT_LT(same, 10);
  EXPECT_EQ(a, b);
  EXPECT_EQ(val(*one, 0), val(*two, 0));
  EXPECT_NE(one->fingerprint(), two->fingerprint());
}

TEST_F(DatasetTest, FingerprintsFollowDataSplitAndLength) {
  auto c = config(folder_.write("a.txt", counting_text(500)));
  std::set<std::string> seen = {open_dataset(c, 16)->fingerprint(),
                                open_dataset(c, 32)->fingerprint()};
  c.val_fraction = 0.1;
  seen.insert(open_dataset(c, 16)->fingerprint());
  c.path = folder_.write("b.txt", counting_text(501));
  seen.insert(open_dataset(c, 16)->fingerprint());
  EXPECT_EQ(seen.size(), 4u);
}

TEST_F(DatasetTest, JsonlAndParagraphsReachTheWindows) {
  auto c = config(folder_.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n"));
  c.val_fraction = 0;
  const auto lines = open_dataset(c, 6);
  EXPECT_EQ(lines->kind(), DataKind::kJsonl);
  EXPECT_EQ(lines->val_sequences(), 0);
  EXPECT_EQ(train(*lines, 0),
            (Sequence{{256, 'a', 'b', 256, 'c', 'd'}, {'a', 'b', 256, 'c', 'd', 'e'}}));
  c.path = folder_.write("a.txt", "ab\n\n\ncde\n");
  c.document = "paragraph";
  EXPECT_EQ(train(*open_dataset(c, 6), 0), train(*lines, 0));
}

TEST_F(DatasetTest, RecallStoriesAreEndless) {
  const auto data = open_dataset({}, 64);
  EXPECT_EQ(data->kind(), DataKind::kRecall);
  EXPECT_EQ(data->train_sequences(), kUnbounded);
  EXPECT_EQ(data->vocab_size(), 147);
  ASSERT_NE(data->recall(), nullptr);
  const Sequence s = train(*data, int64_t{1} << 40);
  EXPECT_EQ(s.tokens[0], data->tokenizer().bos());
  EXPECT_EQ(Ids(s.tokens.begin() + 1, s.tokens.end()), Ids(s.targets.begin(), s.targets.end() - 1));
  EXPECT_FALSE(train(*data, 0) == val(*data, 0));
  Ids story(65);
  data->recall()->story(Split::kVal, 7, story.data(), nullptr);
  EXPECT_EQ(val(*data, 7).targets, Ids(story.begin() + 1, story.end()));
}

TEST_F(DatasetTest, ShardsOfOtherToolsAreReadAsTheyAre) {
  // 10 tokens a shard: (10 - 1) / 4 = 2 windows each; the tokens before the windows come first.
  shard("s/fine_train_000002.bin", range(200, 10));
  shard("s/fine_train_000001.bin", range(100, 10));
  shard("s/fine_val_000000.bin", range(50, 6));
  const auto data = open_dataset(config(folder_.path("s")), 4, 256);
  EXPECT_EQ(data->kind(), DataKind::kTokens);
  EXPECT_EQ(data->vocab_size(), std::nullopt);
  EXPECT_EQ(data->train_sequences(), 4);
  EXPECT_EQ(data->val_sequences(), 1);
  EXPECT_EQ(val(*data, 0), (Sequence{{50, 51, 52, 53}, {51, 52, 53, 54}}));
  std::set<Sequence> epoch;
  for (int64_t i = 0; i < 4; ++i) epoch.insert(train(*data, i));
  EXPECT_THAT(epoch, ElementsAre(Sequence{{100, 101, 102, 103}, {101, 102, 103, 104}},
                                 Sequence{{104, 105, 106, 107}, {105, 106, 107, 108}},
                                 Sequence{{200, 201, 202, 203}, {201, 202, 203, 204}},
                                 Sequence{{204, 205, 206, 207}, {205, 206, 207, 208}}));
  EXPECT_EQ(data->tokenizer().name(), "ids:50") << "shard 0 starts with the end-of-text id";
  EXPECT_THAT(data->describe(), HasSubstr("not stated"));
}

TEST_F(DatasetTest, WithoutValidationShardsTheEndServes) {
  auto c = config(shard("one.bin", range(0, 41)));
  c.val_fraction = 0.05;
  const auto data = open_dataset(c, 4, 100);
  EXPECT_EQ(data->train_sequences(), 9);
  EXPECT_EQ(data->val_sequences(), 1);
  EXPECT_EQ(val(*data, 0), (Sequence{{36, 37, 38, 39}, {37, 38, 39, 40}}));
  for (int64_t i = 0; i < 9; ++i) EXPECT_LT(train(*data, i).targets[3], 37);
  c.val_path = shard("other.bin", range(60, 9));
  EXPECT_EQ(open_dataset(c, 4, 100)->train_sequences(), 10);
  EXPECT_EQ(open_dataset(c, 4, 100)->val_sequences(), 2);
}

TEST_F(DatasetTest, OurShardsAreReadAsText) {
  const auto text = config(folder_.write("a.txt", counting_text(100)));
  const auto direct = open_dataset(text, 8);
  std::filesystem::path cache;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path("cache"))) {
    cache = entry.path();
  }
  std::filesystem::create_directories(folder_.path("shards"));
  std::filesystem::copy_file(cache / "train_000000.bin", folder_.path("shards/a_train_0.bin"));
  std::filesystem::copy_file(cache / "val_000000.bin", folder_.path("shards/a_val_0.bin"));
  const auto shards = open_dataset(config(folder_.path("shards")), 8);
  EXPECT_EQ(shards->tokenizer().name(), "bytes");
  EXPECT_EQ(shards->vocab_size(), 257);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(train(*shards, i), train(*direct, i));
  EXPECT_EQ(val(*shards, 0), val(*direct, 0));
}

TEST_F(DatasetTest, TheVocabularyIsKnownBeforeDataAreRead) {
  EXPECT_EQ(data_vocabulary({}).vocab_size, 147);
  EXPECT_EQ(data_vocabulary(config(folder_.write("a.txt", ""))).vocab_size, 257);
  const auto other = data_vocabulary(config(shard("a.bin", range(7, 5))));
  EXPECT_EQ(other.vocab_size, std::nullopt);
  EXPECT_EQ(other.tokenizer->name(), "ids:7");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("cache")));
}

TEST_F(DatasetTest, ASequenceLongerThanTheDataIsAnError) {
  auto c = config(folder_.write("a.txt", "short"));
  c.val_fraction = 0;
  EXPECT_EQ(open_dataset(c, 5)->train_sequences(), 1);
  expect_error(ExitCode::kConfig,
               {"longer than the data", "6 tokens", "at least 7", "model.sequence_len"},
               [&] { open_dataset(c, 6); });
  c.path = shard("a.bin", range(0, 6));
  c.val_fraction = 0.05;
  expect_error(ExitCode::kConfig, {"longer than the data", "2 tokens for training"},
               [&] { open_dataset(c, 4); });
}

TEST_F(DatasetTest, ASequenceLongerThanTheValidationDataIsAnError) {
  auto c = config(folder_.write("a.txt", std::string(1000, 'x')));
  expect_error(ExitCode::kConfig, {"validation data", "51 tokens", "data.val_fraction=0"},
               [&] { open_dataset(c, 64); });
  c.val_fraction = 0;
  EXPECT_EQ(open_dataset(c, 64)->val_sequences(), 0);
}

TEST_F(DatasetTest, AVocabularyThatIsTooSmallIsAnError) {
  expect_error(ExitCode::kConfig, {"model.vocab_size is 100", "257 ids"},
               [&] { open_dataset(config(folder_.write("a.txt", counting_text(100))), 4, 100); });
  const auto path = shard("a.bin", range(0, 100));
  const auto data = open_dataset(config(path), 4, 50);
  expect_error(ExitCode::kEnvironment, {path, "expected ids from 0 to 49", "model.vocab_size"},
               [&] {
                 for (int64_t i = 0; i < data->train_sequences(); ++i) train(*data, i);
               });
}

TEST_F(DatasetTest, ShardsMustFitTogether) {
  shard("s/a_val_0.bin", range(0, 20));
  expect_error(ExitCode::kEnvironment, {"all shards", "_val_"},
               [&] { open_dataset(config(folder_.path("s")), 4); });
  shard("s/b.bin", range(0, 20));
  TokenShardWriter writer(folder_.path("s/c.bin"), 20, "bytes", 257);
  writer.append(range(0, 20));
  writer.close();
  expect_error(ExitCode::kEnvironment, {"c.bin", "another tokenizer", "b.bin"},
               [&] { open_dataset(config(folder_.path("s")), 4); });
}

TEST_F(DatasetTest, WhatCannotBeReadIsNamed) {
  expect_error(ExitCode::kEnvironment, {"no text", "empty.txt"},
               [&] { open_dataset(config(folder_.write("empty.txt", "")), 4); });
  expect_error(ExitCode::kEnvironment, {"missing.txt"},
               [&] { open_dataset(config(folder_.path("missing.txt")), 4); });
  auto c = config("/dev/null");
  c.kind = "text";
  expect_error(ExitCode::kEnvironment, {"/dev/null", "not a regular file"},
               [&] { open_dataset(c, 4); });
  expect_error(ExitCode::kEnvironment, {"a.jsonl:1", "not an object"},
               [&] { open_dataset(config(folder_.write("a.jsonl", "5\n")), 4); });
  expect_error(ExitCode::kEnvironment, {"bad.bin", "not a token shard"},
               [&] { open_dataset(config(folder_.write("bad.bin", "text")), 4); });
}

TEST_F(DatasetTest, InvalidUtf8IsJustBytes) {
  auto c = config(folder_.write("a.txt", "\xff\xfe\x80\xc0"));
  c.val_fraction = 0;
  EXPECT_EQ(train(*open_dataset(c, 4), 0).targets, (Ids{255, 254, 128, 192}));
}

}  // namespace
}  // namespace heddle
