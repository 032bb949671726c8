#include "framework/model/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"
#include "framework/model/params.h"
#include "tests/unit/support/golden.h"

namespace heddle {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig small() {
  ModelConfig c;
  c.n_layer = 3;
  c.n_head = 4;
  c.n_embd = 64;
  c.sequence_len = 512;
  return c;
}

std::string refusal(const ModelConfig& c, int64_t vocab = 100) {
  try {
    resolve_model(c, vocab);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    return e.what();
  }
  return "accepted";
}

TEST(Spec, ShortWindowIsAQuarterUpToAMultipleOf128) {
  EXPECT_EQ(short_window(128), 128);
  EXPECT_EQ(short_window(512), 128);
  EXPECT_EQ(short_window(513), 256);
  EXPECT_EQ(short_window(1000), 256);
  EXPECT_EQ(short_window(2048), 512);
  EXPECT_EQ(short_window(8192), 2048);
}

TEST(Spec, PatternIsTiledAndTheLastLayerIsLong) {
  ModelConfig c = small();
  c.n_layer = 6;
  c.window_pattern.letters = "sSl";
  EXPECT_THAT(resolve_model(c, 100).windows, ElementsAre(128, 128, 512, 128, 128, 512));
  c.window_pattern.letters = "S";
  EXPECT_THAT(resolve_model(c, 100).windows, ElementsAre(128, 128, 128, 128, 128, 512));
}

TEST(Spec, NumbersAreLiteral) {
  ModelConfig c = small();
  c.window_pattern.windows = {32};
  EXPECT_THAT(resolve_model(c, 100).windows, ElementsAre(32, 32, 32));
  c.window_pattern.windows = {0, -1, 7};
  EXPECT_THAT(resolve_model(c, 100).windows, ElementsAre(0, -1, 7));
  c.window_pattern.windows = {1, 2};
  EXPECT_THAT(refusal(c), HasSubstr("lists 2 windows for 3 layers"));
  c.window_pattern.windows = {-2};
  EXPECT_THAT(refusal(c), HasSubstr("got -2"));
}

TEST(Spec, VocabularyIsPaddedTo64) {
  EXPECT_EQ(resolve_model(small(), 64).padded_vocab, 64);
  EXPECT_EQ(resolve_model(small(), 65).padded_vocab, 128);
  ModelConfig c = small();
  c.vocab_size = 300;
  EXPECT_EQ(resolve_model(c, 257).vocab_size, 300);
  c.vocab_size = 256;
  EXPECT_THAT(refusal(c, 257), HasSubstr("256 is less than the tokenizer's 257"));
}

TEST(Spec, RefusesWhatDoesNotFit) {
  ModelConfig c = small();
  c.n_embd = 66;
  EXPECT_THAT(refusal(c), HasSubstr("66 is not a multiple of model.n_head 4"));
  c = small();
  c.n_kv_head = 3;
  EXPECT_THAT(refusal(c), HasSubstr("4 is not a multiple of model.n_kv_head 3"));
  c = small();
  c.n_embd = 60;
  EXPECT_THAT(refusal(c), HasSubstr("head_dim 15"));
  c = small();
  c.n_embd = 16;
  EXPECT_THAT(refusal(c), HasSubstr("smear"));
  c = small();
  c.window_pattern.letters = "SXL";
  EXPECT_THAT(refusal(c), HasSubstr("'X'"));
  c.window_pattern.letters = "LLLX";  // also beyond the layers
  EXPECT_THAT(refusal(c), HasSubstr("'X'"));
  c.window_pattern.letters = "";
  EXPECT_THAT(refusal(c), HasSubstr("empty"));
}

TEST(Spec, JsonRoundTrip) {
  ModelConfig c = small();
  c.n_kv_head = 2;
  c.smear = false;
  c.qk_scale = 1.0 / 3.0;
  c.rope_base = 10000;
  c.window_pattern.windows = {5, -1, 0};
  const ModelSpec spec = resolve_model(c, 100);
  const json::value read = json::parse(json::serialize(spec_to_json(spec)));
  EXPECT_EQ(spec_from_json(read, "x"), spec);
}

TEST(Spec, JsonWithoutAKeyIsRefused) {
  const json::object full = spec_to_json(resolve_model(small(), 100));
  for (const auto& entry : full) {
    json::object partial = full;
    partial.erase(entry.key());
    try {
      spec_from_json(partial, "step-7/model.json");
      FAIL() << entry.key();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("step-7/model.json"));
      EXPECT_THAT(e.what(), HasSubstr(std::string(entry.key())));
    }
  }
  json::object wrong = full;
  wrong["n_head"] = "four";
  EXPECT_THROW(spec_from_json(wrong, "x"), Error);
  EXPECT_THROW(spec_from_json(json::value(3), "x"), Error);
}

TEST(Spec, DifferenceNamesFieldAndValues) {
  ModelConfig c = small();
  const ModelSpec a = resolve_model(c, 100);
  EXPECT_EQ(spec_difference(a, a), "");
  c.n_head = 8;
  c.smear = false;
  c.window_pattern.windows = {9};
  EXPECT_EQ(spec_difference(a, resolve_model(c, 100)),
            "n_head: 4 in the checkpoint, 8 in the config\n"
            "n_kv_head: 4 in the checkpoint, 8 in the config\n"
            "head_dim: 16 in the checkpoint, 8 in the config\n"
            "windows: [128, 128, 512] in the checkpoint, [9, 9, 9] in the config\n"
            "smear: true in the checkpoint, false in the config");
}

TEST(Spec, AttentionKindsAreDistinct) {
  ModelConfig c = small();
  c.n_layer = 6;
  c.n_kv_head = 2;
  const auto kinds = attention_kinds(resolve_model(c, 100));
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0], (AttentionLayerKind{4, 2, 16, 128}));
  EXPECT_EQ(kinds[1], (AttentionLayerKind{4, 2, 16, 512}));
}

class GoldenSpec : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenSpec, CountsFlopsAndWindows) {
  const heddle::testing::GoldenCase golden(GetParam());
  const ModelSpec spec = resolve_model(golden.config(), 0);
  const auto windows = golden.ints("window_left");
  EXPECT_EQ(spec.windows, std::vector<int64_t>(windows.begin(), windows.end()));
  const ParamCounts counts = count_params(ParamLayout(spec));
  EXPECT_EQ(counts.wte, golden.value("count/wte"));
  EXPECT_EQ(counts.value_embeds, golden.value("count/value_embeds"));
  EXPECT_EQ(counts.lm_head, golden.value("count/lm_head"));
  EXPECT_EQ(counts.transformer_matrices, golden.value("count/transformer_matrices"));
  EXPECT_EQ(counts.scalars, golden.value("count/scalars"));
  EXPECT_EQ(counts.total, golden.value("count/total"));
  EXPECT_EQ(flops_per_token(spec), golden.value("flops_per_token"));
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenSpec, ::testing::Values("sssl_gqa", "l_mha", "sl_mqa"));

// nanochat publishes 286,261,730 parameters for its depth 12.
TEST(Spec, PublishedParameterCount) {
  ModelConfig c;
  c.n_layer = 12;
  c.n_head = 6;
  c.n_embd = 768;
  c.sequence_len = 2048;
  EXPECT_EQ(count_params(ParamLayout(resolve_model(c, 32768))).total, 286261730);
}

}  // namespace
}  // namespace heddle
