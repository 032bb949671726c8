// Every way in which a library can fail to be a plugin ends in one refusal that names the mistake,
// and never in the end of this process.
#include "framework/attention/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugins/abi/heddle_attention.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using test::Environment;
using test::fixture;
using test::copy_to;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ProbeTest : public ::testing::Test {
 protected:
  Environment program_{"HEDDLE_PROBE_EXE", HEDDLE_PROBE_PROGRAM};
};

struct Refusal {
  const char* plugin;
  std::vector<const char*> texts;
};

void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.plugin;
}

class RefusalTest : public ProbeTest, public ::testing::WithParamInterface<Refusal> {};

TEST_P(RefusalTest, NamesTheMistakeAndARemedy) {
  const PluginReport report = probe_plugin(fixture(GetParam().plugin));
  EXPECT_FALSE(report.usable);
  for (const char* text : GetParam().texts) EXPECT_THAT(report.refusal, HasSubstr(text));
  EXPECT_THAT(report.remedy, ::testing::Not(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(
    Plugins, RefusalTest,
    ::testing::Values(
        Refusal{"wrong_window", {"wrong numbers: forward", "window_left 5", "row 6", "expected"}},
        Refusal{"wrong_numbers", {"wrong numbers: forward", "out at batch 0, row 0, head 0"}},
        Refusal{"broken_promise",
                {"broke its promise: query said yes, but forward", "UNSUPPORTED: too long after"}},
        Refusal{"overrun", {"writes beyond its workspace of 100 bytes"}},
        Refusal{"refuses_all", {"refuses every problem", "head_dim=16, needs ==7"}},
        Refusal{"refuses_cpu", {"refuses this cpu: needs AMX"}},
        Refusal{"small_struct", {"says heddle_attention_plugin is 64 bytes, but ABI 1.0 has"}},
        Refusal{"major_field", {"says ABI major 2", "speaks major 1"}},
        Refusal{"null_forward", {"has no forward function"}},
        Refusal{"bad_name", {"calls itself 'Flash-Attention'"}},
        Refusal{"null_table", {"refuses this machine: no licence"}},
        Refusal{"crash_entry", {"crashed with signal 4", "in heddle_attention_plugin_v1"}},
        Refusal{"crash_forward", {"crashed with signal 4", "in forward B 2 T 37"}},
        Refusal{"exit_entry", {"exit status 3 in heddle_attention_plugin_v1"}},
        Refusal{"exit_forward", {"exit status 0 in forward"}},
        Refusal{"fast_math", {"floating-point mode while being loaded (MXCSR 1f80 -> 9fc0)"}},
        Refusal{"no_entry", {"does not export heddle_attention_plugin_v1"}},
        Refusal{"next_major",
                {"exports heddle_attention_plugin_v2 but not heddle_attention_plugin_v1",
                 "ABI major 2"}},
        Refusal{"missing_symbol", {"needs the symbol heddle_fixture_nowhere"}},
        Refusal{"missing_library", {"needs the library libheddle_fixture_hidden_dependency.so"}}),
    [](const auto& instance) { return std::string(instance.param.plugin); });

TEST_F(ProbeTest, HangIsEndedAtTheDeadline) {
  const Environment timeout("HEDDLE_PROBE_TIMEOUT_MS", "1500");
  const PluginReport report = probe_plugin(fixture("hang_entry"));
  EXPECT_FALSE(report.usable);
  EXPECT_THAT(report.refusal,
              HasSubstr("gave no answer within 1.5 s: it hung in heddle_attention_plugin_v1"));
}

TEST_F(ProbeTest, GoodPluginIntroducesItself) {
  const PluginReport report = probe_plugin(fixture("naive"));
  ASSERT_TRUE(report.usable) << report.refusal;
  EXPECT_EQ(report.name, "naive");
  EXPECT_EQ(report.version, "0.1");
  EXPECT_EQ(report.abi, "1.0");
  EXPECT_EQ(report.device_type, uint32_t{HEDDLE_DEVICE_CPU});
  ASSERT_EQ(report.kernels.size(), 3u);
  EXPECT_EQ(report.kernels[0].op, "forward");
  EXPECT_EQ(report.kernels[2].kernel, "naive_loops");
  EXPECT_THAT(report.notes, IsEmpty());
}

TEST_F(ProbeTest, HonestLimitsAreNotesNotRefusals) {
  const PluginReport only = probe_plugin(fixture("only_d64"));
  EXPECT_TRUE(only.usable) << only.refusal;
  EXPECT_THAT(only.notes, IsEmpty());
  const PluginReport decode = probe_plugin(fixture("no_decode"));
  EXPECT_TRUE(decode.usable) << decode.refusal;
  EXPECT_THAT(decode.notes, ::testing::Contains(HasSubstr("decode")));
  const PluginReport windows = probe_plugin(fixture("no_windows"));
  EXPECT_TRUE(windows.usable) << windows.refusal;
  EXPECT_THAT(windows.notes, ::testing::Contains(AllOf(HasSubstr("forward with a window"),
                                                       HasSubstr("WINDOW_LEFT"))));
  EXPECT_TRUE(probe_plugin(fixture("no_lse")).usable);
  EXPECT_TRUE(probe_plugin(fixture("undetermined")).usable);
  EXPECT_TRUE(probe_plugin(fixture("scratch")).usable);
  EXPECT_TRUE(probe_plugin(fixture("chatty")).usable);
}

TEST_F(ProbeTest, OtherDevicesPluginsAreOnlyNegotiated) {
  const PluginReport report = probe_plugin(fixture("gpu"));
  EXPECT_TRUE(report.usable) << report.refusal;
  EXPECT_EQ(report.device_type, uint32_t{HEDDLE_DEVICE_CUDA});
  EXPECT_THAT(report.kernels, IsEmpty());
}

TEST_F(ProbeTest, TextAndTruncatedFilesAreNamed) {
  const TempFolder folder;
  folder.write("text.so", "#!/bin/sh\n");
  EXPECT_THAT(probe_plugin(folder.path("text.so")).refusal, HasSubstr("not a shared library"));
  folder.write("empty.so", "");
  EXPECT_THAT(probe_plugin(folder.path("empty.so")).refusal, HasSubstr("empty file"));
  copy_to(fixture("naive"), folder / "short.so");
  std::filesystem::resize_file(folder.path("short.so"), 9000);
  EXPECT_THAT(probe_plugin(folder.path("short.so")).refusal, HasSubstr("is truncated: 9000 bytes"));
}

TEST_F(ProbeTest, PathsMayHaveSpacesAndAnyLetters) {
  const TempFolder folder;
  const std::string file = folder / "mit Leerzeichen und \xc3\xa9\xe6\x97\xa5/my plugin.so";
  copy_to(fixture("naive"), file);
  const PluginReport report = probe_plugin(file);
  EXPECT_TRUE(report.usable) << report.refusal;
}

TEST_F(ProbeTest, RebuiltFileIsProbedAgain) {
  const TempFolder folder;
  copy_to(fixture("no_entry"), folder / "changing.so");
  EXPECT_FALSE(probe_plugin(folder.path("changing.so")).usable);
  std::filesystem::remove(folder.path("changing.so"));
  copy_to(fixture("naive"), folder / "changing.so");
  EXPECT_TRUE(probe_plugin(folder.path("changing.so")).usable);
}

TEST_F(ProbeTest, AnUnfitProbeProgramIsAnEnvironmentError) {
  const TempFolder folder;  // a file that no test has probed yet
  copy_to(fixture("naive"), folder / "new.so");
  const Environment wrong("HEDDLE_PROBE_EXE", "/bin/true");
  EXPECT_THAT(test::error_of([&] { probe_plugin(folder.path("new.so")); }, ExitCode::kEnvironment),
              HasSubstr("did not answer as a plugin probe"));
  const Environment missing("HEDDLE_PROBE_EXE", "/nonexistent/heddle");
  EXPECT_THAT(test::error_of([&] { probe_plugin(folder.path("new.so")); }, ExitCode::kEnvironment),
              HasSubstr("cannot start /nonexistent/heddle"));
}

TEST_F(ProbeTest, ABadDeadlineIsRefused) {
  const TempFolder folder;
  copy_to(fixture("naive"), folder / "new.so");
  const Environment bad("HEDDLE_PROBE_TIMEOUT_MS", "soon");
  EXPECT_THAT(test::error_of([&] { probe_plugin(folder.path("new.so")); }, ExitCode::kEnvironment),
              HasSubstr("HEDDLE_PROBE_TIMEOUT_MS is 'soon'"));
}

}  // namespace
}  // namespace heddle
