#include "framework/data/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/framework/data/expect_error.h"

namespace heddle {
namespace {

using testing::ElementsAre;

DataConfig config(const std::string& kind, const std::string& path,
                  const std::string& val_path = {}) {
  DataConfig c;
  c.kind = kind;
  c.path = path;
  c.val_path = val_path;
  return c;
}

class DataFilesTest : public testing::Test {
 protected:
  DataKind kind(const std::string& path, const std::string& configured = "auto") const {
    return resolve_kind(config(configured, path));
  }
  test::TempFolder folder_;
};

TEST_F(DataFilesTest, NoPathMeansTheEmbeddedCorpus) {
  EXPECT_EQ(resolve_kind({}), DataKind::kRecall);
  EXPECT_EQ(resolve_kind(config("recall", "")), DataKind::kRecall);
}

TEST_F(DataFilesTest, TheEndingOfAFileTellsItsKind) {
  EXPECT_EQ(kind(folder_.write("a.txt", "")), DataKind::kText);
  EXPECT_EQ(kind(folder_.write("a.jsonl", "")), DataKind::kJsonl);
  EXPECT_EQ(kind(folder_.write("a.bin", "")), DataKind::kTokens);
  const auto odd = folder_.write("a.md", "");
  EXPECT_EQ(kind(odd, "text"), DataKind::kText);
  expect_error(ExitCode::kConfig, {odd, ".txt, .jsonl or .bin", "data.kind"}, [&] { kind(odd); });
}

TEST_F(DataFilesTest, AFolderIsWhatItsFilesAre) {
  folder_.write("d/b.jsonl", "");
  folder_.write("d/a.jsonl", "");
  folder_.write("d/README", "");
  folder_.write("d/.hidden.txt", "");
  folder_.write("d/below/c.jsonl", "");
  EXPECT_EQ(kind(folder_.path("d")), DataKind::kJsonl);
  EXPECT_THAT(data_files(folder_.path("d"), DataKind::kJsonl, "data.path"),
              ElementsAre(folder_.path("d/a.jsonl"), folder_.path("d/b.jsonl")));
}

TEST_F(DataFilesTest, AMixedFolderNeedsAKind) {
  folder_.write("d/a.txt", "");
  folder_.write("d/b.bin", "");
  expect_error(ExitCode::kConfig, {"several kinds", "a.txt, b.bin", "data.kind"},
               [&] { kind(folder_.path("d")); });
  EXPECT_EQ(kind(folder_.path("d"), "text"), DataKind::kText);
  EXPECT_THAT(data_files(folder_.path("d"), DataKind::kText, "data.path"),
              ElementsAre(folder_.path("d/a.txt")));
}

TEST_F(DataFilesTest, AFolderWithoutDataIsAnError) {
  folder_.write("d/README.md", "");
  expect_error(ExitCode::kEnvironment, {folder_.path("d"), "no data files"},
               [&] { kind(folder_.path("d")); });
  expect_error(ExitCode::kEnvironment, {folder_.path("d"), "*.bin", "tokens"},
               [&] { data_files(folder_.path("d"), DataKind::kTokens, "data.path"); });
}

TEST_F(DataFilesTest, AMissingPathIsNamed) {
  const auto path = folder_.path("none.txt");
  expect_error(ExitCode::kEnvironment, {"data.path", path, "current folder"}, [&] { kind(path); });
  expect_error(ExitCode::kEnvironment, {"data.val_path", path},
               [&] { data_files(path, DataKind::kText, "data.val_path"); });
  // Too many symbolic links.
  std::filesystem::create_symlink(folder_.path("loop.txt"), folder_.path("loop.txt"));
  expect_error(ExitCode::kEnvironment, {"cannot read", "loop.txt"},
               [&] { kind(folder_.path("loop.txt")); });
}

TEST_F(DataFilesTest, SettingsThatContradictEachOtherAreErrors) {
  const auto text = folder_.write("a.txt", ""), lines = folder_.write("b.jsonl", "");
  expect_error(ExitCode::kConfig, {"data.kind is text", "data.path is empty"},
               [&] { kind("", "text"); });
  expect_error(ExitCode::kConfig, {"recall", text}, [&] { kind(text, "recall"); });
  expect_error(ExitCode::kConfig, {"data.val_path", text},
               [&] { resolve_kind(config("auto", "", text)); });
  expect_error(ExitCode::kConfig, {"data.val_path is jsonl", "data.path is text"},
               [&] { resolve_kind(config("auto", text, lines)); });
}

}  // namespace
}  // namespace heddle
