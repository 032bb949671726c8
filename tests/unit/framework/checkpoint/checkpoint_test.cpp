#include "framework/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "framework/checkpoint/manifest.h"
#include "framework/checkpoint/run_folder.h"
#include "framework/core/crc32c.h"
#include "framework/core/error.h"
#include "framework/core/version.h"
#include "tests/unit/framework/checkpoint/contents.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Contents;
using testing::expect_exact;
using test::get_file;
using ::testing::HasSubstr;
using ::testing::Not;
using test::put_file;
using test::set_byte;
using test::MemoryFolder;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(folder)) names.push_back(e.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string refusal(const std::string& path) {
  try {
    Checkpoint::open(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    return e.what();
  }
  return "accepted";
}

class CheckpointTest : public ::testing::Test {
 protected:
  std::string save(int64_t step, int64_t keep = 0, int variant = 0) {
    return save_checkpoint(testing::alone(), folder_, Contents(step, variant).all, keep);
  }
  MemoryFolder temp_;
  std::string run_ = temp_ / "run";
  std::string folder_ = checkpoints_folder(run_);
};

TEST_F(CheckpointTest, RoundTripIsExactByEveryKindOfPath) {
  const std::string path = save(180);
  EXPECT_EQ(path, folder_ + "/step-000180");
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"manifest.json", "model.safetensors",
                                                      "optimizer.safetensors", "state.json"}));
  for (const std::string& p : {path, path + "/", folder_, run_, run_ + "/"}) {
    const Checkpoint c = Checkpoint::open(p);
    expect_exact(c, 180);
    EXPECT_EQ(c.path(), path);
    EXPECT_EQ(c.state().at("heddle_version").as_string(), kVersion);
  }
}

TEST_F(CheckpointTest, ManifestHoldsSizeAndCrcOfEveryFile) {
  const std::string path = save(7);
  const json::value manifest = json::read_file(path + "/manifest.json");
  ASSERT_EQ(manifest.at("files").as_array().size(), 3u);
  for (const auto& file : manifest.at("files").as_array()) {
    const std::string bytes = get_file(path + "/" + std::string(file.at("name").as_string()));
    EXPECT_EQ(file.at("bytes").to_number<size_t>(), bytes.size());
    EXPECT_EQ(std::stoul(std::string(file.at("crc32c").as_string()), nullptr, 16),
              crc32c(bytes.data(), bytes.size()));
  }
  EXPECT_EQ(manifest.at("format_version").as_int64(), 1);
}

TEST_F(CheckpointTest, StateKeepsDoublesAndTurnsNonFiniteIntoNull) {
  Contents c(1);
  const double tricky[] = {0.1, 5e-324, 1.7976931348623157e308, -0.0, 1.0 / 3.0};
  c.all.state["tricky"] = json::array(std::begin(tricky), std::end(tricky));
  c.all.state["nested"] = json::object{{"nan", std::nan("")}, {"n", json::array{INFINITY}}};
  save_checkpoint(testing::alone(), folder_, c.all, 0);
  const Checkpoint got = Checkpoint::open(run_);
  for (size_t i = 0; i < std::size(tricky); ++i) {
    const double back = got.state().at("tricky").at(i).as_double();
    EXPECT_EQ(std::memcmp(&back, &tricky[i], sizeof back), 0) << tricky[i];
  }
  EXPECT_TRUE(got.state().at("nested").at("nan").is_null());
  EXPECT_TRUE(got.state().at("nested").at("n").at(0).is_null());
}

TEST_F(CheckpointTest, EmptyOptimizerAndEmptyTensorsAreLegal) {
  CheckpointContents c;
  c.step = 0;
  c.model = {{"none", {0, 3}, DType::kF32, nullptr}};
  save_checkpoint(testing::alone(), folder_, c, 1);
  const Checkpoint got = Checkpoint::open(folder_);
  EXPECT_EQ(got.model().tensor("none").bytes, 0u);
  EXPECT_TRUE(got.optimizer().tensors().empty());
}

TEST_F(CheckpointTest, RetentionKeepsTheNewest) {
  for (int64_t step : {10, 20, 30, 1000000, 40}) save(step, 2);
  EXPECT_EQ(names_in(folder_), (std::vector<std::string>{"step-000040", "step-1000000"}));
  save(50, 0);
  EXPECT_EQ(list_checkpoints(folder_).size(), 3u);
  EXPECT_EQ(list_checkpoints(folder_)[0].step, 1000000);
}

TEST_F(CheckpointTest, RetentionDoesNotCountOrTouchIncompleteOnes) {
  save(10, 2);
  save(20, 2);
  fs::remove(save(30, 0) + "/model.safetensors");
  save(25, 2);
  EXPECT_EQ(names_in(folder_),
            (std::vector<std::string>{"step-000020", "step-000025", "step-000030"}));
}

TEST_F(CheckpointTest, RetentionLeavesForeignFilesAlone) {
  fs::create_directories(folder_ + "/step-best");
  fs::create_directories(folder_ + "/.tmp-mine");
  put_file(folder_ + "/step-000001", "a file");
  save(10, 1);
  save(20, 1);
  EXPECT_EQ(names_in(folder_),
            (std::vector<std::string>{".tmp-mine", "step-000001", "step-000020", "step-best"}));
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  save(10, 2, 0);
  save(20, 2, 0);
  save(20, 2, 5);
  EXPECT_EQ(names_in(folder_), (std::vector<std::string>{"step-000010", "step-000020"}));
  expect_exact(Checkpoint::open(run_), 20, 5);
}

TEST_F(CheckpointTest, ACopyElsewhereUnderAnotherNameOpens) {
  save(10);
  fs::create_directories(temp_ / "elsewhere");
  fs::copy(folder_ + "/step-000010", temp_ / "elsewhere/best");
  expect_exact(Checkpoint::open(temp_ / "elsewhere/best"), 10);
}

TEST_F(CheckpointTest, NothingThereIsSaid) {
  EXPECT_THAT(refusal(run_), HasSubstr("there is no checkpoint folder " + run_));
  fs::create_directories(folder_);
  EXPECT_THAT(refusal(run_), HasSubstr("there is no checkpoint in " + folder_));
  std::string skipped = "x";
  EXPECT_FALSE(open_newest(folder_, &skipped).has_value());
  EXPECT_EQ(skipped, "");
  EXPECT_FALSE(open_newest(temp_ / "absent", nullptr).has_value());
  save(10);
  EXPECT_THAT(refusal(folder_ + "/step-000999"),
              AllOf(HasSubstr("no checkpoint folder"), HasSubstr("step-000010")));
}

TEST_F(CheckpointTest, MissingAndCutFilesAreNamedAndThePreviousOneOffered) {
  const std::string good = save(10), bad = save(20);
  for (const char* file :
       {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}) {
    const std::string path = bad + "/" + file, bytes = get_file(path);
    fs::remove(path);
    EXPECT_THAT(refusal(bad),
                AllOf(HasSubstr(file), HasSubstr("newest good one"), HasSubstr(good)));
    for (size_t n : {size_t{0}, size_t{5}, bytes.size() / 2, bytes.size() - 2}) {
      put_file(path, bytes.substr(0, n));
      EXPECT_THAT(refusal(bad), AllOf(HasSubstr(file), HasSubstr(good))) << n;
    }
    put_file(path, bytes + "x");
    EXPECT_THAT(refusal(bad), HasSubstr(file));
    put_file(path, bytes);
    expect_exact(Checkpoint::open(bad), 20);
  }
}

TEST_F(CheckpointTest, SizesInTheMessage) {
  save(10);
  const std::string bad = save(20), path = bad + "/model.safetensors", bytes = get_file(path);
  put_file(path, bytes.substr(0, bytes.size() - 4));
  EXPECT_THAT(refusal(bad), HasSubstr("has " + std::to_string(bytes.size() - 4) +
                                      " bytes, expected " + std::to_string(bytes.size())));
}

TEST_F(CheckpointTest, EveryFlippedByteIsFound) {
  const std::string path = save(20);
  for (const std::string& name : names_in(path)) {
    const std::string file = path + "/" + name, bytes = get_file(file);
    const size_t stride = name == "manifest.json" ? 1 : 3;
    for (size_t at = 0; at < bytes.size(); at += stride) {
      set_byte(file, at, static_cast<char>(bytes[at] ^ (1 << at % 8)));
      EXPECT_THAT(refusal(path), HasSubstr(name)) << at;
      set_byte(file, at, bytes[at]);
    }
  }
  expect_exact(Checkpoint::open(path), 20);
}

TEST_F(CheckpointTest, TheDamagedTensorIsNamed) {
  save(10);
  const std::string bad = save(20), path = bad + "/model.safetensors", bytes = get_file(path);
  // resid_lambdas comes first in the data, wte last.
  set_byte(path, bytes.size() - 3, static_cast<char>(bytes[bytes.size() - 3] ^ 1));
  EXPECT_THAT(refusal(bad), AllOf(HasSubstr("in tensor transformer.wte.weight)"),
                                  HasSubstr("CRC-32C is"), Not(HasSubstr("resid_lambdas"))));
  set_byte(path, bytes.size() - 3, bytes[bytes.size() - 3]);
  set_byte(path, 9, static_cast<char>(bytes[9] ^ 1));
  EXPECT_THAT(refusal(bad), HasSubstr("in its header"));
}

TEST_F(CheckpointTest, NewestSkipsDamagedOnesWithAReport) {
  save(10);
  save(20);
  set_byte(save(30) + "/state.json", 3, '#');
  fs::remove(save(40) + "/manifest.json");
  std::string skipped;
  const auto c = open_newest(folder_, &skipped);
  ASSERT_TRUE(c.has_value());
  expect_exact(*c, 20);
  EXPECT_THAT(skipped, AllOf(HasSubstr("step-000040: "), HasSubstr("no manifest.json"),
                             HasSubstr("step-000030/state.json is damaged"),
                             HasSubstr("taking " + folder_ + "/step-000020 instead")));
  expect_exact(Checkpoint::open(run_), 20);
  open_newest(folder_ + "/../checkpoints", &skipped);
  EXPECT_THAT(skipped, Not(HasSubstr("step-000020:")));
}

TEST_F(CheckpointTest, AllDamagedIsAnErrorNotAFreshStart) {
  fs::remove(save(10) + "/model.safetensors");
  try {
    open_newest(folder_, nullptr);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("can be read"), HasSubstr("model.safetensors")));
  }
  EXPECT_THAT(refusal(folder_ + "/step-000010"), HasSubstr("there is no good one before it"));
}

TEST_F(CheckpointTest, TheOfferedOneIsOlderAndGood) {
  save(10);
  fs::remove(save(20) + "/state.json");
  const std::string bad = save(30);
  save(40);
  fs::remove(bad + "/state.json");
  EXPECT_THAT(refusal(bad), AllOf(HasSubstr("step-000010"), Not(HasSubstr("step-000020")),
                                  Not(HasSubstr("step-000040"))));
}

TEST_F(CheckpointTest, NewerFormatIsRefusedAsSuch) {
  const std::string path = save(10);
  std::string text = get_file(path + "/manifest.json");
  const std::string key = "\"format_version\": 1";
  text.replace(text.find(key), key.size(), "\"format_version\": 2");
  put_file(path + "/manifest.json", text);
  EXPECT_THAT(refusal(path), HasSubstr("format version 2, this heddle reads up to 1"));
}

TEST_F(CheckpointTest, ManifestMayNotPointOutside) {
  Manifest m;
  m.files.push_back({"../secret", "model", 1, 0, {}});
  fs::create_directories(folder_ + "/step-000010");
  put_file(folder_ + "/step-000010/manifest.json", m.text());
  EXPECT_THAT(refusal(folder_ + "/step-000010"), HasSubstr("no plain file name"));
}

// Later formats may spread a role over several files; the reader merges them by name.
TEST_F(CheckpointTest, ARoleMayBeSpreadOverFiles) {
  const std::string path = save(10);
  const float extra[] = {4, 5};
  SafetensorsWriter writer;
  writer.add({"extra", {2}, DType::kF32, extra});
  const auto written = writer.write(path + "/optimizer-2.safetensors");
  Manifest m = Manifest::read(path);
  m.files.push_back({"optimizer-2.safetensors", "optimizer", written.bytes, written.crc32c, {}});
  put_file(path + "/manifest.json", m.text());
  const Checkpoint c = Checkpoint::open(path);
  EXPECT_EQ(c.optimizer().tensors().size(), 3u);
  EXPECT_EQ(c.optimizer().tensor("extra").f32()[1], 5.0f);
  m.files.push_back({"optimizer-2.safetensors", "optimizer", written.bytes, written.crc32c, {}});
  put_file(path + "/manifest.json", m.text());
  EXPECT_THAT(refusal(path), HasSubstr("the tensor extra twice"));
}

}  // namespace
}  // namespace heddle
