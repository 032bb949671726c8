#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/cli/plugin_commands.h"
#include "framework/core/json.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using test::config_with;
using test::fixture;
using ::testing::HasSubstr;

class PluginListTest : public ::testing::Test {
 protected:
  std::string list(bool json) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(
        run_plugin_list(config_with("auto", {fixture("no_decode"), fixture("crash_entry")}), json),
        0);
    return ::testing::internal::GetCapturedStdout();
  }
  const test::Environment program_{"HEDDLE_PROBE_EXE", HEDDLE_PROBE_PROGRAM};
};

TEST_F(PluginListTest, ShowsWhatWasFoundAndWhatWasRefused) {
  const std::string text = list(false);
  EXPECT_THAT(text, HasSubstr("no_decode 0.1 (ABI 1.0, cpu)  attention by its definition\n"
                              "  forward  no_decode_loops\n"
                              "  backward no_decode_loops\n"));
  EXPECT_THAT(text, HasSubstr(fixture("no_decode") + " (attention.plugin_path)"));
  EXPECT_THAT(text, HasSubstr("Refused:\n  " + fixture("crash_entry") +
                              " crashed with signal 4 (Illegal instruction) in "
                              "heddle_attention_plugin_v1"));
}

TEST_F(PluginListTest, JsonHasTheSame) {
  const json::value parsed = json::parse(list(true));
  const json::array& plugins = parsed.as_object().at("plugins").as_array();
  ASSERT_GE(plugins.size(), 2u);
  EXPECT_EQ(plugins[0].at("name").as_string(), "no_decode");
  EXPECT_TRUE(plugins[0].at("usable").as_bool());
  EXPECT_EQ(std::string(plugins[0].at("path").as_string()), fixture("no_decode"));
  EXPECT_FALSE(plugins[1].at("usable").as_bool());
  EXPECT_THAT(std::string(plugins[1].at("refusal").as_string()), HasSubstr("crashed with"));
}

}  // namespace
}  // namespace heddle
