// heddle plugin bench and why as a user runs them: what a plugin does to its process costs its
// rows.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

const std::string kFixtures = HEDDLE_BINARY_DIR "/tests/plugins/";

const boost::json::object& row_of(const boost::json::array& rows, const std::string& plugin,
                                  const std::string& op) {
  for (const auto& row : rows) {
    const boost::json::object& o = row.as_object();
    if (o.at("plugin").as_string() == plugin && o.at("op").as_string() == op) return o;
  }
  throw std::runtime_error("no row for " + plugin + " " + op);
}

std::string text_of(const boost::json::object& row, const char* key) {
  const auto* value = row.if_contains(key);
  return value == nullptr ? "" : std::string(value->as_string());
}

TEST(PluginBench, ACrashAHangAndAnExitCostTheirRows) {
  const TempFolder folder;
  put_file(folder.path("shapes.json"),
             R"([{"seq_len": 24, "n_head": 2, "head_dim": 8, "window_left": 5}])");
  const CommandResult r = run_heddle(
      {"plugin", "bench", "--shapes", folder.path("shapes.json"), "--timeout", "3", "--plugin-path",
       kFixtures + "bench_crash.so", kFixtures + "bench_exit.so", kFixtures + "bench_hang.so",
       "--plugins", "bench_crash,bench_exit,bench_hang,cpu_sdpa", "--json", folder.path("b.json"),
       "--svg", folder.path("b.svg")});
  EXPECT_EQ(r.exit_code, 5) << r.out << r.err;
  const auto json = boost::json::parse(get_file(folder.path("b.json")));
  const boost::json::array& rows = json.at("rows").as_array();
  EXPECT_EQ(rows.size(), 12u);
  const auto failure = [&](const char* plugin) {
    return text_of(row_of(rows, plugin, "forward"), "failed");
  };
  EXPECT_EQ(failure("bench_crash").find("crashed with signal 4"), 0u) << failure("bench_crash");
  EXPECT_EQ(failure("bench_exit").find("ended its process with exit status 9"), 0u);
  EXPECT_EQ(failure("bench_hang").find("gave no result within 3 s"), 0u) << failure("bench_hang");
  for (const char* plugin : {"bench_crash", "bench_exit", "bench_hang", "cpu_sdpa"}) {
    const auto& row = row_of(rows, plugin, "decode");
    EXPECT_EQ(row.at("us").as_array().size(), 5u) << plugin;
    EXPECT_GT(row.at("gbytes_per_second").as_double(), 0.0) << plugin;
  }
  EXPECT_EQ(row_of(rows, "cpu_sdpa", "forward").at("us").as_array().size(), 5u);
  EXPECT_EQ(get_file(folder.path("b.svg")).find("<svg"), 0u);
}

TEST(PluginBench, UnknownNamesAndFilesAreOneMessage) {
  CommandResult r = run_heddle({"plugin", "bench", "--sweep", "--plugins", "no_such_plugin"});
  EXPECT_EQ(r.exit_code, 5);
  EXPECT_NE(r.err.find("no plugin is called 'no_such_plugin'; found: cpu_sdpa"), std::string::npos)
      << r.err;
  r = run_heddle({"plugin", "bench", "--shapes", "/no/such/file.json"});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.err.find("/no/such/file.json"), std::string::npos) << r.err;
  r = run_heddle({"plugin", "bench", "--sweep", "--shapes", "x.json"});
  EXPECT_EQ(r.exit_code, 3) << r.err;
}

TEST(PluginWhy, NeedsNoData) {
  const CommandResult r =
      run_heddle({"plugin", "why", HEDDLE_SOURCE_DIR "/configs/runs/recall_cpu.yaml",
                  "data.path=/no/such/text.txt", "data.kind=text"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("layers 0, 1, 2, 3: attention H 4 K 2 D 32"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("forward  cpu_sdpa"), std::string::npos) << r.out;
}

TEST(PluginNew, TwiceIntoOneFolderIsRefused) {
  const TempFolder folder;
  const std::vector<std::string> args = {"plugin", "new", "twice", "--dir", folder.path("twice")};
  EXPECT_EQ(run_heddle(args).exit_code, 0);
  const CommandResult again = run_heddle(args);
  EXPECT_EQ(again.exit_code, 4);
  EXPECT_NE(again.err.find("exists already and is not an empty folder"), std::string::npos);
}

TEST(Validation, NamesStepAndLayerOfARun) {
  const TempFolder folder;
  const CommandResult r = run_heddle(
      {"train", HEDDLE_SOURCE_DIR "/configs/runs/recall_cpu.yaml", "model.n_layer=2",
       "model.sequence_len=32", "train.total_batch_size=64", "train.device_batch_size=2",
       "train.num_iterations=40", "train.eval_every=0", "log.dir=" + folder.path("runs"),
       "attention.backend=bench_nan", "attention.plugin_path=[" + kFixtures + "bench_nan.so]"},
      {{"HEDDLE_VALIDATE", "1"}});
  EXPECT_EQ(r.exit_code, 5) << r.err;
  // Good for 25 calls of two layers a step: the 26th is the second layer of step 13.
  EXPECT_NE(r.err.find("attention.validate: backend 'bench_nan'"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("step 13, layer 1, call 26"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("is nan, though every input is finite"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace heddle::test
