#include "framework/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"
#include "tests/unit/support/golden.h"

namespace heddle {
namespace {

using heddle::testing::GoldenCase;
using heddle::testing::TestModel;
using ::testing::ElementsAreArray;

constexpr SamplerOptions kGreedy{.temperature = 0.0f};

class GoldenText : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenText, GreedyWithAndWithoutCache) {
  const GoldenCase golden(GetParam());
  const ModelSpec spec = resolve_model(golden.config(), 0);
  TestModel model(spec, 1, spec.sequence_len, false);
  model.load(golden);
  const GenerateOptions options{.max_tokens = 48, .sampler = kGreedy};
  const auto prompt = golden.ints("decode_prompt");
  EXPECT_EQ(generate(model.gpt, prompt, options).tokens, golden.ints("decode_cached"));
  EXPECT_EQ(generate_uncached(model.gpt, prompt, options).tokens, golden.ints("decode_naive"));
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenText, ::testing::Values("sssl_gqa", "l_mha", "sl_mqa"));

class Generate : public ::testing::Test {
 protected:
  Generate()
      : golden("sl_mqa"), spec(resolve_model(golden.config(), 0)), model(spec, 1, 64, false) {
    model.load(golden);
    prompt = golden.ints("decode_prompt");
  }
  GoldenCase golden;
  ModelSpec spec;
  TestModel model;
  std::vector<int32_t> prompt;
};

TEST_F(Generate, RowsGiveTheSameAloneAndTogether) {
  const GenerateOptions options{.max_tokens = 12, .sampler = {.top_k = 20, .seed = 5}};
  const std::vector<int32_t> shorter(prompt.begin(), prompt.begin() + 3);
  const auto together = generate(model.gpt, {prompt, shorter, prompt}, options);
  ASSERT_EQ(together.size(), 3u);
  EXPECT_EQ(together[0].tokens, generate(model.gpt, prompt, options).tokens);
  EXPECT_EQ(together[0].tokens, generate_uncached(model.gpt, prompt, options).tokens);
  EXPECT_NE(together[2].tokens, together[0].tokens);  // its own stream
  EXPECT_EQ(together[1].tokens.size(), 12u);
  EXPECT_EQ(together[1].reason, StopReason::kMaxTokens);
  GenerateOptions other = options;
  other.sampler.seed = 6;
  EXPECT_NE(generate(model.gpt, prompt, other).tokens, together[0].tokens);
}

TEST_F(Generate, StopsBeforeAStopToken) {
  const auto text = golden.ints("decode_cached");
  const auto first = std::find(text.begin(), text.end(), text[7]);
  const GenerateOptions options{.max_tokens = 44, .sampler = kGreedy, .stop_tokens = {text[7]}};
  for (const Generation& out :
       {generate(model.gpt, prompt, options), generate_uncached(model.gpt, prompt, options)}) {
    EXPECT_THAT(out.tokens, ElementsAreArray(text.begin(), first));
    EXPECT_EQ(out.reason, StopReason::kStopToken);
  }
}

TEST_F(Generate, CallbackSeesEveryTokenAndMayEndARow) {
  const auto text = golden.ints("decode_cached");
  const GenerateOptions options{.max_tokens = 10, .sampler = kGreedy};
  std::vector<std::vector<int32_t>> seen(2);
  const auto out = generate(model.gpt, {prompt, prompt}, options, [&](int64_t row, int32_t token) {
    seen[static_cast<size_t>(row)].push_back(token);
    return row == 1 || seen[0].size() < 4;
  });
  EXPECT_THAT(out[0].tokens, ElementsAreArray(text.begin(), text.begin() + 4));
  EXPECT_EQ(out[0].reason, StopReason::kCallback);
  EXPECT_THAT(out[1].tokens, ElementsAreArray(text.begin(), text.begin() + 10));
  EXPECT_EQ(out[1].reason, StopReason::kMaxTokens);
  EXPECT_EQ(seen[0], out[0].tokens);
  EXPECT_EQ(seen[1], out[1].tokens);
}

TEST_F(Generate, GoesBeyondTheTrainingLength) {
  const GenerateOptions options{.max_tokens = spec.sequence_len, .sampler = kGreedy};
  const Generation out = generate(model.gpt, prompt, options);
  EXPECT_EQ(static_cast<int64_t>(out.tokens.size()), spec.sequence_len);
  EXPECT_THROW(generate_uncached(model.gpt, prompt, options), Error);
}

TEST_F(Generate, EdgesOfTheRequest) {
  EXPECT_TRUE(generate(model.gpt, prompt, {.max_tokens = 0}).tokens.empty());
  EXPECT_TRUE(generate_uncached(model.gpt, prompt, {.max_tokens = 0}).tokens.empty());
  EXPECT_TRUE(generate(model.gpt, std::vector<std::vector<int32_t>>{}, {}).empty());
  EXPECT_THROW(generate(model.gpt, std::vector<int32_t>{}, {}), Error);
  EXPECT_THROW(generate(model.gpt, prompt, {.max_tokens = -1}), Error);
}

}  // namespace
}  // namespace heddle
