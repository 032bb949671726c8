#include "plugins/conformance/report.h"

#include <gtest/gtest.h>

#include "framework/core/json.h"

namespace heddle::conformance {
namespace {

CheckReport sample() {
  CheckReport report;
  report.plugin = "mine";
  report.version = "0.1";
  report.path = "/tmp/my plugins/mine.so";
  report.level = "quick";
  report.seed = 7;
  RuleResult pass;
  pass.id = "CNT";
  pass.name = "keys counted exactly";
  pass.status = Status::kPassed;
  pass.executed = {0, 10, 0, 4};
  pass.refused = 3;
  pass.seconds = 0.25;
  pass.notes = {"a \"note\""};
  RuleResult fail = pass;
  fail.id = "HOT";
  fail.status = Status::kFailed;
  Case c;
  c.q_len = c.k_len = 5;
  c.window_left = 1;
  fail.findings = {
      {"row 5 sees key 3 & <more>", c, "out (b 0): got 1, expected 0", "window_left + 1"},
      {"crashes\nbadly", std::nullopt, "", ""}};
  RuleResult skip;
  skip.id = "ALLOC";
  skip.name = "no allocation";
  skip.skip_reason = "declared: ALLOCATES";
  report.rules = {pass, fail, skip};
  return report;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, TextSaysWhatHowSmallWhereAndHowToRepeat) {
  const std::string text = text_report(sample());
  EXPECT_TRUE(contains(text, "row 5 sees key 3"));
  EXPECT_TRUE(contains(text, "smallest problem: forward batch 1, q_len 5, k_len 5"));
  EXPECT_TRUE(contains(text, "first difference: out (b 0)"));
  EXPECT_TRUE(contains(text, "looks like: window_left + 1"));
  EXPECT_TRUE(contains(text,
                       "repeat: heddle plugin check '/tmp/my plugins/mine.so' --only HOT --case "
                       "forward,q_len=5,k_len=5,window_left=1\n"));
  EXPECT_TRUE(contains(text, "skip  declared: ALLOCATES"));
  EXPECT_TRUE(text.ends_with("1 passed, 1 failed, 1 skipped\n"));
  EXPECT_TRUE(contains(text, "28 cases: forward 20, backward 0, decode 8, other 0; 6 refused"));
}

TEST(Report, RepeatsWithoutACaseByLevelAndSeed) {
  const CheckReport report = sample();
  EXPECT_EQ(repeat_command(report, report.rules[1], report.rules[1].findings[1]),
            "heddle plugin check '/tmp/my plugins/mine.so' --only HOT --quick --seed 7");
}

TEST(Report, JsonParses) {
  const json::value v = json::parse_strict(json_report(sample()));
  const json::object& o = v.as_object();
  EXPECT_EQ(o.at("plugin").as_string(), "mine");
  EXPECT_EQ(o.at("failed").as_int64(), 1);
  EXPECT_FALSE(o.at("ok").as_bool());
  const json::array& rules = o.at("rules").as_array();
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[0].at("notes").as_array()[0].as_string(), "a \"note\"");
  const json::array& findings = rules[1].at("findings").as_array();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].at("case").as_string(), "forward,q_len=5,k_len=5,window_left=1");
  EXPECT_EQ(findings[1].at("symptom").as_string(), "crashes\nbadly");
  EXPECT_EQ(rules[2].at("skip_reason").as_string(), "declared: ALLOCATES");
}

TEST(Report, JunitHasOneCaseARuleAndEscapes) {
  const std::string xml = junit_report(sample());
  EXPECT_TRUE(contains(xml, "tests=\"3\" failures=\"1\" skipped=\"1\""));
  EXPECT_TRUE(contains(xml, "<failure message=\"row 5 sees key 3 &amp; &lt;more&gt;\">"));
  EXPECT_TRUE(contains(xml, "<skipped message=\"declared: ALLOCATES\"/>"));
  EXPECT_FALSE(contains(xml, "<more>"));
}

TEST(Report, NothingRunIsNotAPass) {
  CheckReport report;
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(contains(closing_lines(report), "no case ran"));
  report.rules.emplace_back();
  EXPECT_FALSE(report.passed());
  report.rules[0].status = Status::kPassed;
  report.rules[0].executed[1] = 1;
  EXPECT_TRUE(report.passed());
}

TEST(ResultLine, ComesBack) {
  for (const RuleResult& r : sample().rules) {
    const auto back = parse_line(to_line(r));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->id, r.id);
    EXPECT_EQ(back->status, r.status);
    EXPECT_EQ(back->skip_reason, r.skip_reason);
    EXPECT_EQ(back->executed, r.executed);
    EXPECT_EQ(back->notes, r.notes);
    ASSERT_EQ(back->findings.size(), r.findings.size());
    for (size_t i = 0; i < r.findings.size(); ++i) {
      EXPECT_EQ(back->findings[i].symptom, r.findings[i].symptom);
      EXPECT_EQ(back->findings[i].problem, r.findings[i].problem);
      EXPECT_EQ(back->findings[i].diagnosis, r.findings[i].diagnosis);
    }
    EXPECT_EQ(to_line(r).find('\n'), std::string::npos);
  }
}

TEST(ResultLine, BrokenLinesAreRefused) {
  const std::string line = to_line(sample().rules[1]);
  for (size_t n = 0; n < line.size(); ++n) {
    const auto back = parse_line(line.substr(0, n));
    if (back) {
      EXPECT_EQ(back->findings.size(), 2u);  // only the last text is shorter
    }
  }
  EXPECT_FALSE(parse_line(line + "\tmore"));
  EXPECT_FALSE(parse_line("CNT\tx\t9"));
  EXPECT_FALSE(parse_line("CNT\tx\t0\t\t1\t1\t1\t1\t0\t0\t99999999999"));
}

}  // namespace
}  // namespace heddle::conformance
