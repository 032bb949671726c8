#include "framework/model/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "framework/core/error.h"
#include "tests/unit/framework/model/tiny_model.h"

namespace heddle {
namespace {

using heddle::testing::all_gradients;
using heddle::testing::load_random;
using heddle::testing::random_tokens;
using heddle::testing::relative_l2;
using heddle::testing::TestModel;
using heddle::testing::tiny_config;

constexpr int64_t kBatch = 4;

class GptTest : public ::testing::Test {
 protected:
  ModelSpec spec = resolve_model(tiny_config(), 0);
  int64_t t = spec.sequence_len;
  std::vector<int32_t> tokens = random_tokens(kBatch * t, spec.vocab_size);
  std::vector<int32_t> targets = random_tokens(kBatch * t, spec.vocab_size, 4);
};

TEST_F(GptTest, MicroBatchesAddUpToOneBatch) {
  TestModel whole(spec, kBatch, t, true);
  load_random(whole);
  const LossSum all = whole.gpt.forward_backward(tokens.data(), targets.data(), kBatch);

  TestModel parts(spec, 3, t, true);  // 3 + 1: also fewer rows than planned
  load_random(parts);
  const LossSum first = parts.gpt.forward_backward(tokens.data(), targets.data(), 3);
  const LossSum second =
      parts.gpt.forward_backward(tokens.data() + 3 * t, targets.data() + 3 * t, 1);
  EXPECT_EQ(first.tokens + second.tokens, all.tokens);
  EXPECT_NEAR(first.nats + second.nats, all.nats, 1e-6 * all.nats);
  const auto want = all_gradients(whole), got = all_gradients(parts);
  for (const ParamInfo& info : whole.gpt.layout().params()) {
    EXPECT_LE(relative_l2(got.data() + info.offset, want.data() + info.offset, info.size()), 5e-6)
        << info.name;
  }
}

TEST_F(GptTest, GradientsAccumulateUntilZeroed) {
  TestModel model(spec, kBatch, t, true);
  load_random(model);
  model.gpt.forward_backward(tokens.data(), targets.data(), kBatch);
  const auto once = all_gradients(model);
  model.gpt.zero_grads();
  model.gpt.forward_backward(tokens.data(), targets.data(), kBatch);
  EXPECT_EQ(all_gradients(model), once);  // bit for bit: nothing of the first pass is left
  model.gpt.forward_backward(tokens.data(), targets.data(), kBatch);
  const auto twice = all_gradients(model);
  std::vector<float> doubled = once;
  for (float& g : doubled) g *= 2.0f;
  EXPECT_LE(relative_l2(twice.data(), doubled.data(), static_cast<int64_t>(twice.size())), 1e-6);
}

TEST_F(GptTest, PaddingBetweenParametersKeepsZeroGradient) {
  TestModel model(spec, kBatch, t, true);
  load_random(model);
  model.gpt.forward_backward(tokens.data(), targets.data(), kBatch);
  std::vector<float> grads = all_gradients(model);
  for (const ParamInfo& info : model.gpt.layout().params()) {
    std::fill_n(grads.begin() + info.offset, info.size(), 0.0f);
  }
  EXPECT_THAT(grads, ::testing::Each(0.0f));
}

TEST_F(GptTest, EvaluationLeavesGradientsAndAgreesAcrossModes) {
  TestModel train(spec, kBatch, t, true), plain(spec, kBatch, t, false);
  load_random(train);
  load_random(plain);
  EXPECT_EQ(plain.gpt.grads(), nullptr);
  const LossSum loss = train.gpt.forward_backward(tokens.data(), targets.data(), kBatch);
  const auto grads = all_gradients(train);
  std::vector<float> a(tokens.size()), b(tokens.size());
  const LossSum mine = train.gpt.evaluate(tokens.data(), targets.data(), kBatch, a.data());
  const LossSum other = plain.gpt.evaluate(tokens.data(), targets.data(), kBatch, b.data());
  EXPECT_EQ(all_gradients(train), grads);
  EXPECT_EQ(a, b);
  EXPECT_EQ(mine.nats, other.nats);
  EXPECT_NEAR(mine.nats, loss.nats, 1e-6 * loss.nats);
}

TEST_F(GptTest, RowsDoNotSeeEachOther) {
  TestModel model(spec, kBatch, t, false);
  load_random(model);
  std::vector<float> all(tokens.size()), one(static_cast<size_t>(t));
  model.gpt.evaluate(tokens.data(), targets.data(), kBatch, all.data());
  model.gpt.evaluate(tokens.data() + 2 * t, targets.data() + 2 * t, 1, one.data());
  EXPECT_LE(relative_l2(one.data(), all.data() + 2 * t, t), 2e-6);
}

TEST_F(GptTest, IgnoredTargetsCostNothing) {
  TestModel model(spec, 1, t, true);
  load_random(model);
  const std::vector<int32_t> ignored(static_cast<size_t>(t), -1);
  const LossSum sum = model.gpt.forward_backward(tokens.data(), ignored.data(), 1);
  EXPECT_EQ(sum.nats, 0.0);
  EXPECT_EQ(sum.tokens, 0);
  EXPECT_THAT(all_gradients(model), ::testing::Each(0.0f));
}

TEST_F(GptTest, IdsOutsideTheVocabularyAreRefused) {
  TestModel model(spec, 1, t, true);
  tokens[5] = 37;
  try {
    model.gpt.forward_backward(tokens.data(), targets.data(), 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("token 37 at place 5"));
  }
  tokens[5] = -1;
  EXPECT_THROW(model.gpt.evaluate(tokens.data(), targets.data(), 1), Error);
  tokens[5] = 0;
  targets[2] = -2;
  EXPECT_THROW(model.gpt.evaluate(tokens.data(), targets.data(), 1), Error);
}

size_t total(const std::vector<MemoryItem>& items) {
  return std::accumulate(items.begin(), items.end(), size_t{0},
                         [](size_t sum, const MemoryItem& item) { return sum + item.bytes; });
}

TEST_F(GptTest, MemoryPlanIsWhatTheModelTakes) {
  TestModel model(spec, kBatch, t, true);
  const auto report = model.gpt.memory_report();
  std::vector<std::string> kinds;
  for (const MemoryItem& item : report) kinds.push_back(item.kind);
  EXPECT_THAT(kinds,
              ::testing::ElementsAre("weights", "gradients", "activations", "logits", "workspace"));
  const size_t workspace = attention_workspace_bytes(spec, *model.host.attention, kBatch, t, true);
  EXPECT_EQ(total(plan_memory(spec, kBatch, t, true, workspace)), total(report));
  EXPECT_EQ(report[0].bytes, static_cast<size_t>(model.gpt.layout().total()) * 4);
}

TEST(GptMemory, DepthSixTrainsWellUnderFourGiB) {
  ModelConfig c;
  c.n_layer = 6;
  c.n_head = 6;
  c.n_embd = 384;
  c.sequence_len = 512;
  c.window_pattern.letters = "L";
  const ModelSpec spec = resolve_model(c, 32768);
  const auto items = plan_memory(spec, 32, 512, true, 64 << 20);
  const size_t optimizer = 2 * items[0].bytes;
  EXPECT_LT(total(items) + optimizer, size_t{7} << 29);  // 3.5 GiB
  EXPECT_LT(total(plan_memory(spec, 32, 512, false, 0)), size_t{1} << 30);
}

}  // namespace
}  // namespace heddle
