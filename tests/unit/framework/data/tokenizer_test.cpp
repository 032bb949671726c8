#include "framework/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "framework/data/recall.h"
#include "framework/data/recall_words.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::ElementsAre;
using Ids = std::vector<int32_t>;

TEST(BytesTokenizerTest, IdsAreBytesAndBosIs256) {
  const auto bytes = make_tokenizer("bytes");
  EXPECT_EQ(bytes->name(), "bytes");
  EXPECT_EQ(bytes->vocab_size(), 257);
  EXPECT_EQ(bytes->bos(), 256);
  EXPECT_THAT(bytes->encode("A\n\xff"), ElementsAre(65, 10, 255));
  EXPECT_EQ(bytes->token_bytes(65), 1);
  EXPECT_EQ(bytes->token_bytes(256), 0);
}

TEST(BytesTokenizerTest, EveryByteSurvives) {
  const auto bytes = make_tokenizer("bytes");
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  EXPECT_EQ(bytes->decode(bytes->encode(all)), all);
}

TEST(BytesTokenizerTest, AnInnerBosReadsAsALineBreak) {
  const auto bytes = make_tokenizer("bytes");
  EXPECT_EQ(bytes->decode(Ids{256, 'a', 256, 'b', 256}), "a\nb");
}

TEST(RecallTokenizerTest, HasTheVocabularyOfTheRecipe) {
  const auto recall = make_tokenizer("recall");
  EXPECT_EQ(recall->vocab_size(), 147);
  std::set<std::string_view> words(recall_words::kText.begin(), recall_words::kText.end());
  EXPECT_EQ(words.size(), 147u) << "a word stands for one id only";
  for (int32_t i = 0; i < recall_words::kNames; ++i) {
    EXPECT_TRUE(
        recall_words::kText[static_cast<size_t>(recall_words::kFirstName + i)].ends_with("'s"));
  }
}

TEST(RecallTokenizerTest, ReadsAsEnglish) {
  const auto recall = make_tokenizer("recall");
  const Ids ids = recall->encode("here Ada's red. saw Ada's");
  EXPECT_THAT(
      ids, ElementsAre(recall_words::kFactLead, recall_words::kFirstName, recall_words::kFirstValue,
                       recall_words::kStop, recall_words::kRecallLead, recall_words::kFirstName));
  EXPECT_EQ(recall->decode(ids), "here Ada's red. saw Ada's");
  EXPECT_EQ(recall->encode("HERE ada's Red ."), recall->encode("here Ada's red."));
}

TEST(RecallTokenizerTest, EveryIdSurvives) {
  const auto recall = make_tokenizer("recall");
  Ids ids(146);
  std::iota(ids.begin(), ids.end(), 1);
  EXPECT_EQ(recall->encode(recall->decode(ids)), ids);
}

TEST(RecallTokenizerTest, StoriesSurviveAndStream) {
  const auto recall = make_tokenizer("recall");
  const RecallCorpus corpus(1, 64);
  Ids story(65);
  corpus.story(Split::kTrain, 3, story.data(), nullptr);
  const std::string text = recall->decode(story);
  EXPECT_EQ(recall->encode(text), Ids(story.begin() + 1, story.end()));
  int bytes = -1;  // the first word has no space before it
  for (size_t n = 1; n <= story.size(); ++n) {
    bytes += recall->token_bytes(story[n - 1]);
    const std::string prefix = recall->decode(std::span(story).first(n));
    EXPECT_TRUE(text.starts_with(prefix));
    EXPECT_EQ(static_cast<int>(prefix.size()), std::max(bytes, 0));
  }
}

TEST(RecallTokenizerTest, NamesTheWordThatItDoesNotKnow) {
  const auto recall = make_tokenizer("recall");
  expect_error(ExitCode::kConfig, {"\"zebra\"", "possessives", "colours"},
               [&] { recall->encode("here Ada's zebra."); });
}

TEST(IdsTokenizerTest, PrintsAndReadsIds) {
  const auto ids = make_tokenizer("ids:50256");
  EXPECT_EQ(ids->name(), "ids:50256");
  EXPECT_EQ(ids->bos(), 50256);
  EXPECT_FALSE(ids->knows_bytes());
  EXPECT_THAT(ids->encode(" 464\n2068 "), ElementsAre(464, 2068));
  EXPECT_EQ(ids->decode(Ids{50256, 464, 2068, 50256, 7}), "464 2068\n7");
  EXPECT_EQ(make_tokenizer("ids")->bos(), -1);
  expect_error(ExitCode::kConfig, {"\"fox\"", "not a token id"}, [&] { ids->encode("464 fox"); });
}

TEST(TokenizerTest, UnknownNameIsAnError) {
  expect_error(ExitCode::kConfig, {"\"gpt2\"", "bytes, recall"}, [] { make_tokenizer("gpt2"); });
}

}  // namespace
}  // namespace heddle
