#include "framework/core/error.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Error, TextIsAreaMessageRemedy) {
  const Error e(ExitCode::kConfig, "config", "run.yaml:7: unknown key n_heads", "use n_head");
  EXPECT_STREQ(e.what(), "[config] run.yaml:7: unknown key n_heads. use n_head");
  EXPECT_EQ(e.area(), "config");
  EXPECT_EQ(e.message(), "run.yaml:7: unknown key n_heads");
  EXPECT_EQ(e.remedy(), "use n_head");
  EXPECT_STREQ(Error(ExitCode::kUsage, "cli", "no command").what(), "[cli] no command");
  EXPECT_STREQ(Error(ExitCode::kUsage, "cli", "Stopped.", "Go on.").what(),
               "[cli] Stopped. Go on.");
}

TEST(Error, FactoriesCarryTheDocumentedExitCodes) {
  EXPECT_EQ(static_cast<int>(config_error("x").code()), 3);
  EXPECT_EQ(static_cast<int>(environment_error("a", "x").code()), 4);
  EXPECT_EQ(static_cast<int>(plugin_error("x").code()), 5);
  EXPECT_EQ(static_cast<int>(comm_error("x").code()), 6);
  EXPECT_EQ(static_cast<int>(numerics_error("x").code()), 7);
  EXPECT_EQ(static_cast<int>(ExitCode::kOk), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::kUsage), 2);
  EXPECT_STREQ(plugin_error("no such file", "check the path").what(),
               "[plugin] no such file. check the path");
}

TEST(CheckDeathTest, SaysWhereAndWhat) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int two = 2;
  HEDDLE_CHECK(two == 2, "never shown");
  EXPECT_DEATH(HEDDLE_CHECK(two == 3, "two is " + std::to_string(two)),
               "internal error at .*error_test.cpp:[0-9]+: two == 3 is false: two is 2");
}

}  // namespace
}  // namespace heddle
