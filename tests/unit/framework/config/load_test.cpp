#include "framework/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"
#include "tests/unit/framework/config/error_text.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "run.yaml", overrides);
}

struct Row {
  std::string yaml;
  std::vector<std::string> expected;
};

void expect_errors(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const std::string text = config_error_text([&] { parse(row.yaml); });
    for (const std::string& part : row.expected) {
      EXPECT_THAT(text, HasSubstr(part)) << "for\n" << row.yaml;
    }
  }
}

TEST(Load, EmptyFilesAndSectionsAreDefaults) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "model:\n", "{}", "model: {}",
                           "model:\n  # n_layer: 2\ntrain:\n", "\xEF\xBB\xBFmodel: {}\n"}) {
    EXPECT_EQ(parse(text), Config{}) << text;
  }
}

TEST(Load, ReadsEveryTypeOfValue) {
  const Config c = parse(
      "model:\r\n"
      "  n_layer: 2.0\r\n"
      "  sequence_len: 0x100\r\n"
      "  n_kv_head: 2\r\n"
      "  vocab_size: auto\r\n"
      "  qk_norm: false\r\n"
      "  window_pattern: sl\r\n"
      "attention: {plugin_path: [a, 'b c']}\r\n"
      "train: {num_iterations: 60_000, total_batch_size: 1024, peak_flops: 1.5e11}\r\n"
      "optim: {matrix_lr: 1e-3}\r\n"
      "log: {name: 2024_01}\r\n");
  EXPECT_EQ(c.model.n_layer, 2);
  EXPECT_EQ(c.model.sequence_len, 256);
  EXPECT_EQ(c.model.n_kv_head, 2);
  EXPECT_FALSE(c.model.vocab_size);
  EXPECT_FALSE(c.model.qk_norm);
  EXPECT_EQ(c.model.window_pattern.letters, "SL");
  EXPECT_THAT(c.attention.plugin_path, ElementsAre("a", "b c"));
  EXPECT_EQ(c.train.num_iterations, 60000);
  EXPECT_EQ(c.train.peak_flops, 1.5e11);
  EXPECT_EQ(c.optim.matrix_lr, 1e-3);
  EXPECT_EQ(c.log.name, "2024_01");
  EXPECT_THAT(parse("attention: {plugin_path: here}").attention.plugin_path, ElementsAre("here"));
}

TEST(Load, UnknownKeys) {
  expect_errors({
      {"model:\n  n_layer: 2\n  n_kv_heads: 2\n",
       {"[config] run.yaml:3: model.n_kv_heads: unknown key; keys of model are n_layer, n_head,",
        "Did you mean model.n_kv_head?"}},
      {"train:\n  batch_size: 8\n", {"run.yaml:2: train.batch_size", "train.device_batch_size"}},
      {"\nmodle:\n  n_layer: 2\n",
       {"run.yaml:2: modle: unknown section; sections are model, attention, data,",
        "Did you mean model?"}},
      {"n_layer: 2\n", {"run.yaml:1: n_layer: unknown section", "Did you mean model.n_layer?"}},
      {"model.n_layer: 2\n", {"run.yaml:1: model.n_layer", "Did you mean model.n_layer?"}},
      {"model: {n_layer:4}\n", {"run.yaml:1: model.n_layer:4", "Write a space after the colon"}},
  });
}

TEST(Load, DuplicateKeys) {
  expect_errors({
      {"model:\n  n_layer: 2\n  n_head: 2\n  n_layer: 3\n",
       {"run.yaml:4: model.n_layer is given twice, first at run.yaml:2", "Keep one of them"}},
      {"model:\n  n_layer: 2\ntrain: {}\nmodel:\n  n_head: 2\n",
       {"run.yaml:4: model is given twice, first at run.yaml:1"}},
      {"model: {n_layer: 2, \"n_layer\": 2}\n", {"run.yaml:1: model.n_layer is given twice"}},
  });
}

TEST(Load, IntegersAndNumbers) {
  expect_errors({
      {"model:\n  n_layer: two\n",
       {"run.yaml:2: model.n_layer: got `two` (not a number), expected integer, 1 to 10000"}},
      {"model: {n_layer: 010}\n", {"leading zero", "Write it without leading zeros: 10"}},
      {"model: {n_layer: 1:30}\n", {"`1:30` (not a number)", "Base-60"}},
      {"model: {n_layer: 1.5}\n", {"`1.5` (not a whole number)"}},
      {"model: {n_layer: 0}\n", {"model.n_layer: got 0, expected integer, 1 to 10000"}},
      {"model: {n_layer: -3}\n", {"got -3"}},
      {"model: {n_layer: \"4\"}\n", {"the quoted text \"4\"", "Remove the quotes"}},
      {"model: {n_layer: auto}\n", {"`auto` (not a number)"}},
      {"model: {n_layer: [4]}\n", {"got a list, expected integer"}},
      {"model: {n_layer: {a: 1}}\n", {"got a mapping, expected integer"}},
      {"model: {n_layer: true}\n", {"`true` (not a number)"}},
      {"model: {n_kv_head: none}\n", {"`none`", "expected integer or auto, 1 to 65536"}},
      {"train: {seed: 99999999999999999999}\n", {"train.seed", "too large to be exact"}},
      {"train: {total_batch_size: 10M}\n", {"Suffixes are not supported"}},
      {"optim: {matrix_lr: .inf}\n",
       {"`.inf` (not a finite number)", "expected number, at least 0"}},
      {"optim: {matrix_lr: nan}\n", {"not a finite number"}},
      {"optim: {matrix_lr: 1e999}\n", {"too large or too small for a double"}},
      {"optim: {matrix_lr: -0.1}\n", {"got -0.1, expected number, at least 0"}},
      {"optim: {adamw_eps: 0}\n", {"got 0, expected number, above 0"}},
      {"optim: {adamw_beta2: 1}\n", {"got 1, expected number, 0 to below 1"}},
      {"data: {val_fraction: 0.6}\n", {"got 0.6, expected number, 0 to 0.5"}},
  });
}

TEST(Load, BooleansAreTrueAndFalseOnly) {
  expect_errors({
      {"model: {smear: yes}\n",
       {"model.smear: got `yes`, expected boolean, true or false", "Write true"}},
      {"model: {smear: no}\n", {"Write false"}},
      {"model: {smear: on}\n", {"Write true"}},
      {"model: {smear: off}\n", {"Write false"}},
      {"model: {smear: True}\n", {"got `True`", "Write true"}},
      {"model: {smear: 1}\n", {"Write true"}},
      {"model: {smear: \"true\"}\n", {"Remove the quotes"}},
      {"model: {smear: maybe}\n", {"got `maybe`"}},
  });
}

TEST(Load, NullIsNotAValue) {
  expect_errors({
      {"model:\n  n_layer:\n  n_head: 4\n",
       {"run.yaml:2: model.n_layer: got nothing (null)", "Write a value or remove the key"}},
      {"model: {smear: ~}\n", {"got nothing (null)"}},
      {"data: {path: null}\n", {"got nothing (null)", "Write \"\" for an empty text"}},
      {"model: {window_pattern: }\n", {"got nothing (null)"}},
  });
}

TEST(Load, Texts) {
  expect_errors({
      {"optim: {kind: adam}\n",
       {"optim.kind: got `adam`, expected text, one of muon, adamw", "Did you mean adamw?"}},
      {"optim: {kind: Muon}\n", {"Did you mean muon?"}},
      {"data: {kind: true}\n", {"`true` (a boolean)"}},
      {"train: {resume: yes}\n", {"`yes` (a boolean)", "one of never, auto, a path"}},
      {"attention: {backend: \"\"}\n", {"attention.backend: got an empty text"}},
      {"log: {name: a/b}\n", {"log.name: got `a/b`", "no slash"}},
      {"log: {name: ..}\n", {"log.name: got `..`"}},
      {"log: {dir: \"\"}\n", {"log.dir: got an empty text"}},
      {"data: {path: \"a\\nb\"}\n", {"data.path", "line break"}},
      {"data: {path: [a]}\n", {"got a list, expected text"}},
      {"attention: {plugin_path: [a, \"\"]}\n", {"an empty text in the list"}},
      {"attention: {plugin_path: [a, [b]]}\n", {"got a list"}},
  });
}

TEST(Load, WindowPatterns) {
  expect_errors({
      {"model:\n  window_pattern: SXL\n",
       {"run.yaml:2: model.window_pattern: got `SXL`, whose character 'X' is neither S nor L",
        "Use S for a short window"}},
      {"model: {window_pattern: \"\"}\n", {"an empty pattern"}},
      {"model: {window_pattern: []}\n", {"an empty list"}},
      {"model: {window_pattern: [64, -2, 1, 1]}\n", {"the window -2", "-1 means all"}},
      {"model: {window_pattern: [a]}\n", {"`a` (not a number)"}},
      {"model: {window_pattern: 64}\n", {"For a window of 64 in all layers write [64]"}},
      {"model: {window_pattern: {S: 1}}\n", {"got a mapping"}},
  });
  EXPECT_THAT(parse("model: {window_pattern: [64]}").model.window_pattern.windows, ElementsAre(64));
}

TEST(Load, YamlThatOthersReadDifferently) {
  expect_errors({
      {"model:\n  <<: *base\n  n_layer: 2\n", {"run.yaml:2"}},
      {"data: &base {seed: 2}\ntrain:\n  <<: *base\n",
       {"run.yaml:1: YAML anchors", "run.yaml:3: train: `<<` does not merge", "Write the keys out"}},
      {"train: {seed: &s 2}\ndata: {seed: *s}\n",
       {"run.yaml:1: YAML anchors", "run.yaml:2: data.seed: YAML aliases"}},
      {"model: {n_layer: !!int 2}\n", {"run.yaml:1: YAML tags are not supported"}},
      {"? [a]\n: 1\n", {"run.yaml:1: a key must be a plain word"}},
  });
}

TEST(Load, TextThatIsNotAConfiguration) {
  expect_errors({
      {"model:\n\tn_layer: 2\n", {"run.yaml:2: not valid YAML", "indent with spaces"}},
      {"model:\n  n_layer: 2\n   n_head: 2\n", {"run.yaml:3: not valid YAML"}},
      {"model: {n_layer: 2\n", {"run.yaml:", "not valid YAML"}},
      {"- model\n", {"run.yaml:1: got a list, expected a mapping with the sections model,"}},
      {"n_layer:2\n", {"got `n_layer:2`, expected a mapping", "a space after each colon"}},
      {"model: {}\n---\ntrain: {}\n", {"run.yaml:2: a second YAML document starts here"}},
      {"model: 3\n", {"run.yaml:1: model: got `3`, expected keys of this section"}},
      {"model: [n_layer]\n", {"model: got a list"}},
      {std::string("ab\0c", 4), {"run.yaml: not a text file"}},
      {std::string(2000, '['), {"not valid YAML"}},
  });
}

TEST(Load, ReportsAllProblemsAtOnce) {
  const std::string text = config_error_text(
      [] { parse("model:\n  n_layer: 0\n  smear: yes\nlogg: {}\n", {"optim.kind=sgd"}); });
  EXPECT_THAT(text, HasSubstr("4 problems:\n  run.yaml:4: logg"));
  EXPECT_THAT(text, HasSubstr("\n  run.yaml:2: model.n_layer: got 0"));
  EXPECT_THAT(text, HasSubstr("\n  run.yaml:3: model.smear: got `yes`, expected boolean, true or "
                              "false. Write true"));
  EXPECT_THAT(text, HasSubstr("\n  command line: optim.kind: got `sgd`"));
}

TEST(Load, Overrides) {
  const Config c =
      parse("model: {n_head: 8, n_kv_head: 4}\ndata: {path: x.txt}\n",
            {"model.n_kv_head=2", "--model.window_pattern=[64]", "data.path=", "train.seed=1",
             "train.seed=2", "attention.plugin_path=[a, b]", "optim.matrix_lr=1e-3",
             "train.init_from=a=b"});
  EXPECT_EQ(c.model.n_head, 8);
  EXPECT_EQ(c.model.n_kv_head, 2);
  EXPECT_THAT(c.model.window_pattern.windows, ElementsAre(64));
  EXPECT_EQ(c.data.path, "");
  EXPECT_EQ(c.train.seed, 2) << "the last one wins";
  EXPECT_THAT(c.attention.plugin_path, ElementsAre("a", "b"));
  EXPECT_EQ(c.optim.matrix_lr, 1e-3);
  EXPECT_EQ(c.train.init_from, "a=b");
  const Config letters = parse("model: {window_pattern: [64]}", {"model.window_pattern=L"});
  EXPECT_EQ(letters.model.window_pattern, (WindowPattern{.letters = "L", .windows = {}}));
}

TEST(Load, OverrideErrors) {
  const Row rows[] = {
      {"model.n_kv_heads=2",
       {"command line: model.n_kv_heads: unknown key", "Did you mean model.n_kv_head?"}},
      {"n_layer=2", {"command line: n_layer: unknown key", "Did you mean model.n_layer?"}},
      {"--model.n_layer", {"command line: got `--model.n_layer`, expected section.key=value"}},
      {"=2", {"expected section.key=value"}},
      {"model={n_layer: 2}", {"command line: model: unknown key"}},
      {"model.n_layer=yes", {"command line: model.n_layer: got `yes`"}},
      {"model.n_layer=", {"command line: model.n_layer: got the quoted text \"\""}},
      {"model.n_layer=null", {"got nothing (null)"}},
      {"model.window_pattern=[64", {"command line: model.window_pattern", "not valid YAML"}},
      {"model.n_layer=&a 2", {"command line: model.n_layer", "YAML anchors"}},
      {"log.name=a: b", {"command line: log.name: got a mapping"}},
  };
  for (const Row& row : rows) {
    const std::string text = config_error_text([&] { parse("", {row.yaml}); });
    for (const std::string& part : row.expected) EXPECT_THAT(text, HasSubstr(part)) << row.yaml;
    EXPECT_THAT(text, Not(HasSubstr("run.yaml")));
  }
}

class LoadFile : public ::testing::Test {
 protected:
  std::string error_for(const std::string& name) {
    return config_error_text([&] { load_config(folder_ / name); });
  }

  test::TempFolder folder_;
};

TEST_F(LoadFile, ReadsTheFileAndNamesItInErrors) {
  const std::string good = folder_.write("good.yaml", "model: {n_layer: 2}\n");
  EXPECT_EQ(load_config(good, {"model.n_head=2"}).model.n_layer, 2);
  folder_.write("bad.yaml", "model:\n  n_layer: x\n");
  EXPECT_THAT(error_for("bad.yaml"), HasSubstr(folder_ / "bad.yaml" + ":2: model"));
}

TEST_F(LoadFile, MissingFilesNameTheNeighbours) {
  EXPECT_THAT(error_for("recal_cpu.yaml"), HasSubstr("There is no YAML file in"));
  const std::string near = folder_.write("recall_cpu.yaml", "");
  folder_.write("kjv.yaml", "");
  EXPECT_THAT(error_for("recal_cpu.yaml"),
              HasSubstr("no configuration file " + folder_ / "recal_cpu.yaml"));
  EXPECT_THAT(error_for("recal_cpu.yaml"), HasSubstr("Did you mean " + near + "?"));
  EXPECT_THAT(error_for("recall_cpu"), HasSubstr("Did you mean " + near + "?"));
  EXPECT_THAT(error_for("something_else.yaml"), HasSubstr("has kjv.yaml, recall_cpu.yaml"));
  EXPECT_THAT(error_for("."), HasSubstr("is a folder, expected a YAML file"));
}

TEST(Configs, EveryFileInTheRepositoryLoads) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(HEDDLE_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    if (entry.path().parent_path().filename() == "sweeps") continue;  // not a run
    EXPECT_NO_THROW(load_config(entry.path().string())) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace heddle
