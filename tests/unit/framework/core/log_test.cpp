#include "framework/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using test::get_file;
using ::testing::HasSubstr;
using ::testing::Not;
using test::MemoryFolder;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override { before_ = spdlog::default_logger(); }
  void TearDown() override {
    spdlog::set_default_logger(before_);
    spdlog::set_level(spdlog::level::info);
  }
  // A fresh default logger without sinks, so that nothing appears on the test's own output.
  void mute() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("test")); }
  std::shared_ptr<spdlog::logger> before_;
};

TEST_F(LogTest, FileGetsLinesAtOnce) {
  MemoryFolder temp;
  mute();
  log::add_file(temp / "log.txt");
  log::info("step {} of {}", 1, 2);
  log::debug("not this");
  EXPECT_THAT(get_file(temp / "log.txt"),
              AllOf(HasSubstr(" info step 1 of 2\n"), Not(HasSubstr("not this"))));
}

TEST_F(LogTest, OtherRanksSpeakFromWarningUpwards) {
  MemoryFolder temp;
  mute();
  log::add_file(temp / "log.txt");
  log::set_rank(1, 2);
  log::info("quiet");
  log::warn("loud");
  spdlog::default_logger()->flush();
  EXPECT_THAT(get_file(temp / "log.txt"), AllOf(HasSubstr("loud"), Not(HasSubstr("quiet"))));
}

TEST_F(LogTest, AFileThatCannotBeWritten) {
  MemoryFolder temp;
  test::put_file(temp / "file", "");
  try {
    log::add_file(temp / "file/log.txt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    EXPECT_THAT(e.what(), AllOf(HasSubstr(temp / "file/log.txt"), HasSubstr("log.dir")));
  }
}

}  // namespace
}  // namespace heddle
