#include "framework/config/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/config/load.h"
#include "tests/unit/framework/config/error_text.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Row {
  std::vector<std::string> overrides;
  std::vector<std::string> expected;
};

std::string conflict_text(const std::vector<std::string>& overrides) {
  return config_error_text([&] { parse_config("", "run.yaml", overrides); });
}

TEST(Check, FieldsThatContradictEachOther) {
  const Row rows[] = {
      {{"model.n_embd=130"},
       {"command line: model.n_embd 130 is not a multiple of model.n_head 4",
        "Try model.n_embd: 128 or 136"}},
      {{"model.n_head=6", "model.n_embd=90"},
       {"model.n_embd 90 / model.n_head 6 gives head_dim 15, which must be even",
        "Try model.n_embd: 84 or 96"}},
      {{"model.n_head=1", "model.n_embd=768"},
       {"gives head_dim 768, more than the largest, 256", "Try model.n_head: 3"}},
      {{"model.n_head=4", "model.n_kv_head=3"},
       {"model.n_head 4 is not a multiple of model.n_kv_head 3",
        "With 4 heads model.n_kv_head can be 1, 2, 4"}},
      {{"model.n_kv_head=8"}, {"model.n_head 4", "model.n_kv_head 8", "can be 1, 2, 4"}},
      {{"model.window_pattern=[64, 32]"},
       {"model.window_pattern lists 2 windows for model.n_layer 4", "one per layer"}},
      {{"model.n_embd=16", "model.n_head=2"},
       {"model.smear is true and needs model.n_embd of at least 24, got 16", "model.smear: false"}},
      {{"model.n_embd=8", "model.n_head=2", "model.smear=false"},
       {"model.value_embeds is true", "at least 12, got 8", "model.value_embeds: false"}},
      {{"train.total_batch_size=2000"},
       {"train.total_batch_size 2000 (tokens) is not a multiple of model.sequence_len 256",
        "Try train.total_batch_size: 1792 or 2048"}},
      {{"train.total_batch_size=100"}, {"Try train.total_batch_size: 256"}},
      {{"data.kind=recall", "data.path=a.txt"},
       {"data.kind recall is generated", "data.path is a.txt", "data.kind: auto"}},
      {{"data.kind=text"}, {"data.kind text reads files, but data.path is empty"}},
      {{"data.val_path=b.txt"}, {"data.val_path is b.txt, but data.path is empty"}},
      {{"device.kind=cpu", "device.precision=bf16"},
       {"device.precision bf16 is computed on CUDA only", "device.precision: auto"}},
  };
  for (const Row& row : rows) {
    const std::string text = conflict_text(row.overrides);
    for (const std::string& part : row.expected) EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Check, ConflictsNameTheLineThatGaveTheValue) {
  const std::string text =
      config_error_text([] { parse_config("model:\n  n_head: 4\n  n_kv_head: 3\n", "run.yaml"); });
  EXPECT_THAT(text, HasSubstr("run.yaml:3: model.n_head 4 is not a multiple"));
}

TEST(Check, LegalShapesPass) {
  EXPECT_NO_THROW(check_config(Config{}));
  for (const auto& overrides : std::vector<std::vector<std::string>>{
           {"model.n_kv_head=1"},
           {"model.n_kv_head=4"},
           {"model.window_pattern=[64]"},
           {"model.window_pattern=[-1, 0, 5, 1000]"},
           {"model.n_head=1", "model.n_embd=256"},
           {"model.n_embd=24", "model.n_head=2"},
           {"model.n_embd=2", "model.n_head=1", "model.smear=false", "model.value_embeds=false"},
           {"data.path=a.txt", "data.val_path=b.txt"}}) {
    EXPECT_NO_THROW(parse_config("", "run.yaml", overrides)) << overrides[0];
  }
}

TEST(Check, CodeCannotPassWhatYamlCannot) {
  Config config;
  config.model.n_head = 0;  // would divide by zero in every later check
  config.optim.kind = "sgd";
  config.model.window_pattern.letters = "SX";
  const std::string text = config_error_text([&] { check_config(config); });
  EXPECT_THAT(text, HasSubstr("3 problems:"));
  EXPECT_THAT(text, HasSubstr("model.n_head: got 0, expected integer, 1 to 65536"));
  EXPECT_THAT(text, HasSubstr("optim.kind: got `sgd`, expected text, one of muon, adamw"));
  EXPECT_THAT(text, HasSubstr("character 'X' is neither S nor L"));
}

TEST(Check, VocabMustHoldTheTokenizer) {
  Config config;
  EXPECT_NO_THROW(check_vocab(config, 257, "bytes"));
  config.model.vocab_size = 32768;
  EXPECT_NO_THROW(check_vocab(config, 257, "bytes"));
  config.model.vocab_size = 256;
  const std::string text = config_error_text([&] { check_vocab(config, 257, "bytes"); });
  EXPECT_THAT(text, HasSubstr("model.vocab_size is 256, but the tokenizer bytes has 257 ids"));
  EXPECT_THAT(text, HasSubstr("Set model.vocab_size: auto, or at least 257"));
}

TEST(Check, WarnsAboutRunsThatAreProbablyNotMeant) {
  EXPECT_THAT(config_warnings(Config{}), IsEmpty());
  Config config;
  config.train.num_iterations = 20;
  config.checkpoint.at_end = false;
  const auto warnings = config_warnings(config);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], HasSubstr("optim.warmup_steps 40"));
  EXPECT_THAT(warnings[1], HasSubstr("checkpoint.at_end is false"));
}

}  // namespace
}  // namespace heddle
