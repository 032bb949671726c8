#include "framework/cli/plugin_why.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/config/load.h"
#include "framework/core/parallel_for.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PluginWhy : public ::testing::Test {
 protected:
  ~PluginWhy() override { set_num_threads(0); }
  WhyAnswer why(const std::string& backend, const std::string& paths) {
    return explain_choice(parse_config(
        "model: {n_layer: 3, n_head: 4, n_kv_head: 2, n_embd: 64, sequence_len: 32, "
        "window_pattern: [8, 32, 8]}\ndata: {path: /no/such/data.txt}\n"
        "train: {device_batch_size: 2, total_batch_size: 64, threads: 1}\nattention: {backend: " +
            backend + ", plugin_path: [" + paths + "]}\n",
        "run.yaml"));
  }
  test::Environment program_{"HEDDLE_PROBE_EXE", HEDDLE_PROBE_PROGRAM};
};

TEST_F(PluginWhy, NamesLayersChoiceTimesAndRefusals) {
  const WhyAnswer answer =
      why("auto", test::fixture("naive_fast") + ", " + test::fixture("no_windows"));
  EXPECT_TRUE(answer.every_kind_served);
  EXPECT_THAT(answer.text,
              HasSubstr("layers 0, 2: attention H 4 K 2 D 16 window_left 8 (B 2, T 32): "
                        "naive_fast 0.1"));
  EXPECT_THAT(answer.text, HasSubstr("layer 1: attention H 4 K 2 D 16 window_left 32"));
  EXPECT_THAT(answer.text, HasSubstr("us estimated"));
  EXPECT_THAT(answer.text, HasSubstr("no_windows.so): forward: required_features=WINDOW_LEFT"));
  EXPECT_THAT(answer.text, HasSubstr("counted\ntwice for a plugin that declares ALLOCATES"));
}

TEST_F(PluginWhy, GoesOnWhenAKindHasNoBackend) {
  const WhyAnswer answer = why("only_d64", test::fixture("only_d64"));
  EXPECT_FALSE(answer.every_kind_served);
  EXPECT_THAT(answer.text, HasSubstr("layers 0, 2: attention backend 'only_d64' cannot train"));
  EXPECT_THAT(answer.text, HasSubstr("layer 1: attention backend 'only_d64' cannot train"));
  EXPECT_THAT(answer.text, HasSubstr("head_dim=16, needs ==64"));
}

}  // namespace
}  // namespace heddle
