#include "framework/attention/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/attention/catalog.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using test::config_with;
using test::Environment;
using test::fixture;
using test::TempFolder;
using ::testing::Contains;
using ::testing::HasSubstr;

std::vector<std::string> paths_of(const PluginFiles& found, size_t count) {
  std::vector<std::string> paths;
  for (const PluginFile& f : found.files) {
    if (paths.size() < count) paths.push_back(f.path);
  }
  return paths;
}

TEST(Discovery, ConfigThenEnvironmentThenBuiltInEachSorted) {
  const TempFolder first, second;
  first.write("b.so", "1");
  first.write("a.so", "2");
  first.write("notes.txt", "3");
  std::filesystem::create_directory(first.path("folder.so"));
  second.write("0.so", "4");
  const Environment variable("HEDDLE_PLUGIN_PATH", ":" + second.path() + "::/nonexistent:");
  const PluginFiles found = find_plugin_files(config_with("auto", {first.path()}));
  EXPECT_EQ(paths_of(found, 3), (std::vector<std::string>{first.path("a.so"), first.path("b.so"),
                                                          second.path("0.so")}));
  EXPECT_EQ(found.files[0].source, "attention.plugin_path");
  EXPECT_EQ(found.files[2].source, "HEDDLE_PLUGIN_PATH");
  EXPECT_EQ(found.not_found, std::vector<std::string>{"/nonexistent"});
  EXPECT_FALSE(found.files[0].named);
  for (const PluginFile& f : found.files) EXPECT_TRUE(f.path.starts_with("/")) << f.path;
}

TEST(Discovery, TheCurrentFolderIsNotSearched) {
  const TempFolder folder;
  folder.write("here.so", "x");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const PluginFiles found = find_plugin_files(config_with("auto", {}));
  std::filesystem::current_path(before);
  for (const PluginFile& f : found.files) EXPECT_THAT(f.path, ::testing::Not(HasSubstr("here.so")));
}

TEST(Discovery, BuiltInFolderLiesBesideTheExecutable) {
  const PluginFiles found = find_plugin_files(config_with("auto", {}));
  const auto expected = std::filesystem::path(HEDDLE_CPU_SDPA).lexically_normal().string();
  std::vector<std::string> paths = paths_of(found, 100);
  EXPECT_THAT(paths, Contains(expected));
}

TEST(Discovery, AFileIsNamedWhateverItIsCalledAndCountsOnce) {
  const TempFolder folder;
  folder.write("plugin.so.1", "x");
  std::filesystem::create_symlink(folder.path("plugin.so.1"), folder.path("plugin.so"));
  const PluginFiles found =
      find_plugin_files(config_with("auto", {folder.path("plugin.so.1"), folder.path()}));
  EXPECT_EQ(paths_of(found, 1), std::vector<std::string>{folder.path("plugin.so.1")});
  EXPECT_TRUE(found.files[0].named);
  for (size_t i = 1; i < found.files.size(); ++i) {
    EXPECT_THAT(found.files[i].path, ::testing::Not(HasSubstr(folder.path())));
  }
}

TEST(Discovery, AMissingEntryOfTheConfigurationIsAnError) {
  for (const std::string entry : {"/nonexistent/a.so", "", "nonexistent"}) {
    EXPECT_THAT(test::error_of([&] { find_plugin_files(config_with("auto", {entry})); }),
                HasSubstr("attention.plugin_path names '" + entry + "', which does not exist"));
  }
}

TEST(Catalog, OfTwoPluginsWithOneNameTheFirstIsKept) {
  const Environment program("HEDDLE_PROBE_EXE", HEDDLE_PROBE_PROGRAM);
  const PluginCatalog catalog =
      make_plugin_catalog(config_with("auto", {fixture("naive_again"), fixture("naive")}));
  ASSERT_GE(catalog.plugins.size(), 2u);
  EXPECT_TRUE(catalog.plugins[0].report.usable);
  EXPECT_FALSE(catalog.plugins[1].report.usable);
  EXPECT_EQ(catalog.plugins[1].file.path, fixture("naive"));
  EXPECT_EQ(catalog.plugins[1].report.refusal,
            "has the name 'naive', which " + fixture("naive_again") + " has already taken");
}

TEST(Catalog, AFileThatNeverSaidItsNameIsKnownByItsFile) {
  PluginCandidate candidate;
  candidate.file.path = "/x/libheddle_flash.so";
  EXPECT_EQ(candidate.display_name(), "flash");
  candidate.file.path = "/x/mine.so";
  EXPECT_EQ(candidate.display_name(), "mine");
  candidate.report.name = "said";
  EXPECT_EQ(candidate.display_name(), "said");
}

}  // namespace
}  // namespace heddle
