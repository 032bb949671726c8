// A row per way in which a user, a file or a disk can be wrong: one clear message with a remedy,
// the documented exit code, nothing lost.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "tests/e2e/support/command.h"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

constexpr const char* kYaml = HEDDLE_SOURCE_DIR "/tests/e2e/sssl_gqa.yaml";

struct ErrorCase {
  const char* name;
  std::string yaml;  // empty: kYaml
  Args overrides;
  int exit_code;
  std::vector<std::string> says;  // parts of the message
};

void PrintTo(const ErrorCase& c, std::ostream* out) { *out << c.name; }

class Errors : public testing::TestWithParam<ErrorCase> {};

TEST_P(Errors, OneClearMessage) {
  const ErrorCase& c = GetParam();
  TempFolder folder;
  std::string file = kYaml;
  if (!c.yaml.empty()) {
    file = folder.path("run.yaml");
    put_file(file, c.yaml);
  }
  put_file(folder.path("empty.txt"), "");
  put_file(folder.path("short.txt"), "A text of less than one sequence.\n");
  put_file(folder.path("not-a-library.so"), "plain text\n");
  Args args{"train", file, "log.dir=" + folder.path("runs"), "train.num_iterations=1",
            "data.cache_dir=" + folder.path("cache")};
  for (std::string o : c.overrides) {
    if (const auto at = o.find("@"); at != std::string::npos) o.replace(at, 1, folder.path() + "/");
    args.push_back(o);
  }
  const CommandResult r = run_heddle(args);
  EXPECT_EQ(r.exit_code, c.exit_code) << r.err;
  EXPECT_NE(r.err.find("heddle: ["), std::string::npos) << r.err;
  for (const std::string& part : c.says) EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(folder.path("runs"))) << "something was written before the check";
}

INSTANTIATE_TEST_SUITE_P(
    Rows, Errors,
    testing::Values(
        ErrorCase{"missing_data", "", {"data.kind=text", "data.path=@nowhere.txt"}, 4, {"nowhere.txt"}},
        ErrorCase{"empty_data", "", {"data.kind=text", "data.path=@empty.txt"}, 4, {"empty.txt"}},
        ErrorCase{"sequence_longer_than_data", "", {"data.kind=text", "data.path=@short.txt"}, 3,
                  {"short.txt", "sequence_len"}},
        ErrorCase{"unknown_key", "model: {n_heads: 4}\n", {}, 3, {"run.yaml:1", "n_head"}},
        ErrorCase{"duplicate_key", "model: {n_head: 4, n_head: 2}\n", {}, 3, {"run.yaml:1", "n_head"}},
        ErrorCase{"wrong_type", "train:\n  num_iterations: many\n", {}, 3,
                  {"run.yaml:2", "num_iterations", "many"}},
        ErrorCase{"octal", "train:\n  seed: 010\n", {}, 3, {"run.yaml:2", "010"}},
        ErrorCase{"heads_do_not_divide", "", {"model.n_head=3"}, 3, {"n_embd", "n_head"}},
        ErrorCase{"kv_heads_do_not_divide", "", {"model.n_kv_head=3"}, 3, {"n_head", "n_kv_head"}},
        ErrorCase{"window_letters", "", {"model.window_pattern=SXL"}, 3, {"window_pattern", "X"}},
        ErrorCase{"window_empty", "", {"model.window_pattern="}, 3, {"window_pattern"}},
        ErrorCase{"vocabulary_too_small", "", {"model.vocab_size=100"}, 3, {"vocab_size", "147"}},
        ErrorCase{"unknown_backend", "", {"attention.backend=nosuch"}, 5, {"nosuch", "plugins found are", "attention.plugin_path"}},
        ErrorCase{"not_a_library", "",
                  {"attention.plugin_path=[@not-a-library.so]", "attention.backend=not-a-library"},
                  5, {"not-a-library"}},
        ErrorCase{"missing_checkpoint", "", {"train.resume=@nowhere"}, 4, {"nowhere"}},
        ErrorCase{"missing_weights", "", {"train.init_from=@nowhere.safetensors"}, 4,
                  {"nowhere.safetensors"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ErrorsUsage, UnknownCommandAndOption) {
  EXPECT_EQ(run_heddle({"weave"}).exit_code, 2);
  EXPECT_EQ(run_heddle({"train", kYaml, "--fast"}).exit_code, 2);
  EXPECT_EQ(run_heddle({"train"}).exit_code, 2);
  EXPECT_EQ(run_heddle({"--help"}).exit_code, 0);
  EXPECT_EQ(run_heddle({"train", "--help"}).exit_code, 0);
}

TEST(ErrorsUsage, MissingConfiguration) {
  const CommandResult r = run_heddle({"train", "nowhere.yaml"});
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_NE(r.err.find("nowhere.yaml"), std::string::npos) << r.err;
}

TEST(ErrorsUsage, BytesThatAreNotUtf8AreData) {
  TempFolder folder;
  std::string bytes;
  for (int i = 0; i < 40000; ++i) bytes += static_cast<char>(i * 37 % 256);
  put_file(folder.path("raw.txt"), bytes);
  const CommandResult r = run_heddle({"train", kYaml, "data.kind=text",
                                      "data.path=" + folder.path("raw.txt"),
                                      "data.cache_dir=" + folder.path("cache"),
                                      "train.num_iterations=1", "log.dir=" + folder.path("runs")});
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

// Two checkpoints, then the newest is damaged.
class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    const CommandResult r = run_heddle({"train", kYaml, "train.num_iterations=2",
                                        "checkpoint.every=1", "checkpoint.at_end=true",
                                        "log.dir=" + folder_.path(), "log.name=run"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    newest_ = folder_.path("run/checkpoints/step-000002");
    ASSERT_TRUE(fs::exists(newest_));
  }

  void expect_refused_by_name() {
    const CommandResult r = run_heddle({"generate", "--checkpoint", newest_, "--tokens", "4"});
    EXPECT_EQ(r.exit_code, 4) << r.err;
    EXPECT_NE(r.err.find("model.safetensors"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("step-000001"), std::string::npos) << "the good one is not offered\n"
                                                            << r.err;
    const CommandResult older = run_heddle({"generate", "--checkpoint", folder_.path("run"),
                                            "--tokens", "4"});
    EXPECT_EQ(older.exit_code, 0) << older.err;
  }

  TempFolder folder_;
  std::string newest_;
};

TEST_F(DamagedCheckpoint, Truncated) {
  fs::resize_file(newest_ + "/model.safetensors", fs::file_size(newest_ + "/model.safetensors") / 2);
  expect_refused_by_name();
}

TEST_F(DamagedCheckpoint, OneBitFlipped) {
  std::string bytes = get_file(newest_ + "/model.safetensors");
  bytes[bytes.size() - 1000] ^= 4;
  put_file(newest_ + "/model.safetensors", bytes);
  expect_refused_by_name();
}

Env shim(const std::string& prefix, int error, const char* bytes) {
  Env env{{"LD_PRELOAD", HEDDLE_BINARY_DIR "/tests/libfail_shim.so"},
          {"HEDDLE_SHIM_PREFIX", prefix},
          {"HEDDLE_SHIM_ERRNO", std::to_string(error)}};
  if (bytes != nullptr) env["HEDDLE_SHIM_BYTES"] = bytes;
  return env;
}

TEST(Disk, ReadOnlyOutputFolder) {
  TempFolder folder;
  const CommandResult r = run_heddle({"train", kYaml, "train.num_iterations=1",
                                      "log.dir=" + folder.path("runs")},
                                     shim(folder.path("runs"), EROFS, nullptr));
  EXPECT_EQ(r.exit_code, 4) << r.err;
  EXPECT_NE(r.err.find("Read-only file system"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("log.dir"), std::string::npos) << r.err;
}

TEST(Disk, FullWhileSavingKeepsTheLastCheckpoint) {
  TempFolder folder;
  const Args args{"train", kYaml, "checkpoint.every=1", "checkpoint.at_end=true",
                  "log.dir=" + folder.path(), "log.name=run", "train.resume=auto"};
  Args first = args;
  first.push_back("train.num_iterations=1");
  ASSERT_EQ(run_heddle(first).exit_code, 0);

  Args second = args;
  second.push_back("train.num_iterations=3");
  const CommandResult r =
      run_heddle(second, shim(folder.path("run/checkpoints"), ENOSPC, "500000"));
  EXPECT_EQ(r.exit_code, 4) << r.err;
  EXPECT_NE(r.err.find("No space left on device"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("free space"), std::string::npos) << r.err;
  EXPECT_TRUE(fs::exists(folder.path("run/checkpoints/step-000001/manifest.json")));
  EXPECT_EQ(run_heddle({"generate", "--checkpoint", folder.path("run"), "--tokens", "4"}).exit_code,
            0);
}

}  // namespace
}  // namespace heddle::test
