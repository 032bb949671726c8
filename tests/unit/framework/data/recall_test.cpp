#include "framework/data/recall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "framework/core/crc32c.h"
#include "framework/data/recall_words.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

namespace rw = recall_words;

bool is_name(int32_t id) {
  return id >= rw::kFirstName && id < rw::kFirstName + rw::kNames;
}
bool is_value(int32_t id) {
  return id >= rw::kFirstValue && id < rw::kFirstValue + rw::kValues;
}

struct Story {
  std::vector<int32_t> tokens;
  std::vector<Recall> recalls;
};

Story story(const RecallCorpus& corpus, Split split, int64_t index) {
  Story s;
  s.tokens.resize(static_cast<size_t>(corpus.sequence_len()) + 1);
  corpus.story(split, index, s.tokens.data(), &s.recalls);
  return s;
}

// What a reader of the tokens alone finds: an independent account of the grammar.
struct Mention {
  int32_t value;
  int64_t last;
  int recalls = 0;
};

void expect_grammar(const RecallCorpus& corpus, const Story& s) {
  const int64_t length = corpus.sequence_len();
  std::map<int32_t, Mention> facts;
  std::vector<Recall> found;
  ASSERT_EQ(s.tokens[0], rw::kBos);
  for (int64_t start = 1; start + 3 <= length; start += 4) {
    const int32_t* t = s.tokens.data() + start;
    ASSERT_EQ(t[3], rw::kStop);
    const int64_t at = start + 1;
    if (t[0] == rw::kFactLead) {
      ASSERT_TRUE(is_name(t[1]) && is_value(t[2]));
      ASSERT_TRUE(facts.emplace(t[1], Mention{t[2], at}).second) << "a name is used once";
    } else if (t[0] == rw::kRecallLead) {
      const auto fact = facts.find(t[1]);
      ASSERT_NE(fact, facts.end()) << "a recall needs its fact";
      ASSERT_EQ(t[2], fact->second.value);
      const int64_t distance = at - fact->second.last;
      ASSERT_EQ(distance % 4, 0);
      ASSERT_LE(distance, corpus.max_distance());
      ASSERT_LE(++fact->second.recalls, 2);
      fact->second.last = at;
      found.push_back({static_cast<int32_t>(at), static_cast<int32_t>(distance), t[2]});
    } else {
      const int32_t first = t[0] - rw::kFillerFirst, second = t[1] - rw::kFillerSecond,
                    third = t[2] - rw::kFillerThird;
      ASSERT_TRUE(first >= 0 && first < 4 && second >= 0 && second < 16 && third >= 0 &&
                  third < 16);
      ASSERT_EQ(second % 4, first);
      ASSERT_EQ(second / 4, third / 4);
    }
  }
  ASSERT_EQ(found.size(), s.recalls.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].position, s.recalls[i].position);
    EXPECT_EQ(found[i].distance, s.recalls[i].distance);
    EXPECT_EQ(found[i].value_token, s.recalls[i].value_token);
  }
}

TEST(RecallCorpusTest, KeepsTheGrammar) {
  for (const int64_t length : {16, 64, 256, 512, 2048}) {
    const RecallCorpus corpus(1, length);
    for (int64_t i = 0; i < 50; ++i) expect_grammar(corpus, story(corpus, Split::kTrain, i));
  }
}

TEST(RecallCorpusTest, ACutSentenceKeepsItsRecallOnlyWithTheValue) {
  for (const int64_t length : {61, 62, 63, 64}) {
    const RecallCorpus corpus(1, length);
    for (int64_t i = 0; i < 50; ++i) {
      const Story s = story(corpus, Split::kVal, i);
      for (const Recall& recall : s.recalls) {
        ASSERT_LT(recall.position, length);
        EXPECT_EQ(s.tokens[static_cast<size_t>(recall.position) + 1], recall.value_token);
      }
    }
  }
}

TEST(RecallCorpusTest, StoriesAreAPureFunctionOfSeedSplitAndIndex) {
  const RecallCorpus a(1, 256), b(1, 256), other(2, 256);
  const auto five = story(a, Split::kTrain, 5).tokens;
  story(b, Split::kTrain, 99);
  EXPECT_EQ(story(b, Split::kTrain, 5).tokens, five);
  EXPECT_NE(story(a, Split::kTrain, 6).tokens, five);
  EXPECT_NE(story(a, Split::kVal, 5).tokens, five);
  EXPECT_NE(story(other, Split::kTrain, 5).tokens, five);
}

// The corpus is part of what a published figure means: this value changes only on purpose.
TEST(RecallCorpusTest, TheFirstStoriesNeverChange) {
  const RecallCorpus corpus(1, 256);
  uint32_t crc = 0;
  for (const Split split : {Split::kTrain, Split::kVal}) {
    for (int64_t i = 0; i < 16; ++i) {
      const Story s = story(corpus, split, i);
      crc = crc32c(s.tokens.data(), s.tokens.size() * sizeof(int32_t), crc);
    }
  }
  EXPECT_EQ(crc, 0xd240c528u);
}

TEST(RecallCorpusTest, ValuesAndFillerAreEven) {
  const RecallCorpus corpus(3, 256);
  std::array<int, rw::kValues> values{};
  std::map<std::array<int32_t, 3>, int> fillers;
  int facts = 0, filler = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const Story s = story(corpus, Split::kTrain, i);
    for (size_t p = 1; p + 3 < s.tokens.size(); p += 4) {
      if (s.tokens[p] == rw::kFactLead) {
        ++values[static_cast<size_t>(s.tokens[p + 2] - rw::kFirstValue)];
        ++facts;
      } else if (s.tokens[p] != rw::kRecallLead) {
        ++fillers[{s.tokens[p], s.tokens[p + 1], s.tokens[p + 2]}];
        ++filler;
      }
    }
  }
  // Chi-square with 15 and 63 degrees of freedom: 0.9999 quantiles 44.3 and 116.
  double chi_values = 0, chi_filler = 0;
  for (const int n : values) chi_values += (n - facts / 16.0) * (n - facts / 16.0) / (facts / 16.0);
  for (const auto& [sentence, n] : fillers) {
    chi_filler += (n - filler / 64.0) * (n - filler / 64.0) / (filler / 64.0);
  }
  EXPECT_LT(chi_values, 44.3);
  EXPECT_EQ(fillers.size(), 64u);
  EXPECT_LT(chi_filler, 116);
}

TEST(RecallCorpusTest, TooShortAStoryIsAnError) {
  expect_error(ExitCode::kConfig, {"8 tokens", "at least 16", "model.sequence_len=16"},
               [] { RecallCorpus(1, 8); });
}

std::vector<std::pair<int64_t, int64_t>> ranges(int64_t sequence_len) {
  std::vector<std::pair<int64_t, int64_t>> out;
  const RecallTable table(sequence_len);
  for (const auto& b : table.buckets()) out.emplace_back(b.from, b.to);
  return out;
}

TEST(RecallTableTest, BucketsEndAtWindows) {
  using R = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(ranges(256), (R{{4, 32}, {36, 64}, {68, 96}, {100, 128}, {132, 192}, {196, 230}}));
  EXPECT_EQ(ranges(128), (R{{4, 32}, {36, 64}, {68, 96}, {100, 115}}));
  EXPECT_EQ(ranges(512).back(), (std::pair<int64_t, int64_t>{388, 460}));
  EXPECT_EQ(ranges(16), (R{{4, 14}}));
  // 0.9 T = 193: no multiple of four between 192 and it.
  EXPECT_EQ(ranges(215).back(), (std::pair<int64_t, int64_t>{132, 192}));
}

TEST(RecallTableTest, CountsMergesAndPrints) {
  RecallTable a(256), b(256);
  a.add(4, true);
  a.add(32, false);
  a.add(36, true);
  b.add(32, true);
  b.add(228, false);
  a.merge(b);
  EXPECT_EQ(a.buckets()[0].correct, 2);
  EXPECT_EQ(a.buckets()[0].total, 3);
  EXPECT_EQ(a.buckets()[1].total, 1);
  EXPECT_EQ(a.buckets()[5].total, 1);
  RecallTable c(256);
  c.set_counts(a.counts());
  EXPECT_EQ(c.text(), a.text());
  EXPECT_THAT(a.text(), testing::HasSubstr("196-230"));
  EXPECT_THAT(a.text(), testing::HasSubstr("0.667"));
  EXPECT_THAT(a.text(), testing::HasSubstr("chance 0.0625"));
}

TEST(RecallTableTest, ChosenStoriesFillEveryBucket) {
  const RecallCorpus corpus(1, 256);
  const auto stories = recall_eval_stories(corpus, 1000);
  RecallTable table(256);
  for (const int64_t i : stories) {
    for (const Recall& r : story(corpus, Split::kVal, i).recalls) table.add(r.distance, true);
  }
  for (const auto& bucket : table.buckets()) EXPECT_GE(bucket.total, 1000) << bucket.from;
  EXPECT_LT(stories.size(), 1300u);
}

}  // namespace
}  // namespace heddle
