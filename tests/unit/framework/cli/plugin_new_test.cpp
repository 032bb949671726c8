#include "framework/cli/plugin_new.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "framework/cli/template_files.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class PluginNew : public ::testing::TestWithParam<const char*> {
 protected:
  heddle::test::MemoryFolder folder_;
};

TEST_P(PluginNew, EveryFileBearsTheName) {
  NewPluginOptions options;
  options.name = "tiled_2";
  options.lang = GetParam();
  options.folder = folder_.path() + "/with a space/ä";
  options.prefix = "/opt/heddle";
  const std::vector<std::string> files = write_new_plugin(options);
  EXPECT_GE(files.size(), 4u);
  bool source = false;
  for (const std::string& file : files) {
    const std::string text = read_text_file(file);
    EXPECT_THAT(text, Not(HasSubstr("my_attention"))) << file;
    EXPECT_THAT(text, Not(HasSubstr("@PREFIX@"))) << file;
    source |= fs::path(file).stem() == "tiled_2";
    if (file.ends_with("README.md")) {
      EXPECT_THAT(text, HasSubstr("-DCMAKE_PREFIX_PATH=\"/opt/heddle\""));
    }
  }
  EXPECT_TRUE(source);
}
INSTANTIATE_TEST_SUITE_P(Languages, PluginNew, ::testing::Values("c", "cpp", "cuda"));

TEST(PluginNewErrors, NothingThatExistsIsTouched) {
  const heddle::test::MemoryFolder folder;
  write_file_atomically(folder.path() + "/notes.txt", "mine");
  NewPluginOptions options;
  options.name = "mine";
  options.folder = folder.path();
  try {
    write_new_plugin(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_THAT(error.what(), HasSubstr("exists already and is not an empty folder"));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(PluginNewErrors, NamesThatNoHostAcceptsAreRefused) {
  for (const char* name : {"", "auto", "Flash", "a-b", "../x", "ü"}) {
    NewPluginOptions options;
    options.name = name;
    options.folder = "/nonexistent/folder";
    EXPECT_THROW(write_new_plugin(options), Error) << name;
  }
}

TEST(TemplateFiles, AreTheFilesOfTheTree) {
  for (size_t i = 0; i < kTemplateFilesCount; ++i) {
    const std::string path =
        std::string(HEDDLE_SOURCE_DIR "/plugins/template/") + std::string(kTemplateFiles[i].path);
    EXPECT_EQ(read_text_file(path), kTemplateFiles[i].contents) << path;
  }
}

}  // namespace
}  // namespace heddle
