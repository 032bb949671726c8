#include "framework/config/number.h"

#include <gtest/gtest.h>

#include <limits>

namespace heddle::config_internal {
namespace {

TEST(Number, ReadsWhatPeopleWrite) {
  struct Row {
    const char* text;
    double real;
    bool whole;
  };
  const Row rows[] = {
      {"0", 0, true},         {"60_000", 60000, true}, {"1e-3", 1e-3, false},
      {"0.02", 0.02, false},  {"1e6", 1e6, true},      {"2.0", 2, true},
      {"0x10", 16, true},     {"-0x10", -16, true},    {"+5", 5, true},
      {"-7", -7, true},       {".5", 0.5, false},      {"5.", 5, true},
      {"1_0.5", 10.5, false}, {"1.5e1", 15, true},     {"2.5E+2", 250, true},
      {"0.1e1", 1, true},     {"0e0", 0, true},        {"0xff_ff", 65535, true},
      {"-0.0", 0, true},      {"123e-2", 1.23, false},
  };
  for (const Row& row : rows) {
    const Number number = parse_number(row.text);
    ASSERT_TRUE(number.ok()) << row.text << ": " << number.problem;
    EXPECT_EQ(number.real, row.real) << row.text;
    EXPECT_EQ(number.integer.has_value(), row.whole) << row.text;
    if (row.whole) {
      EXPECT_EQ(*number.integer, static_cast<int64_t>(row.real)) << row.text;
    }
  }
}

TEST(Number, RefusesWhatReadersDisagreeAbout) {
  for (const char* text :
       {"",     "-",     "010",   "-007", "00.5",  "1:30", "1,000", "10M",   "4k",      "50%",
        "inf",  ".inf",  "-.inf", "nan",  ".NaN",  "1e",   "1e+",   "e5",    ".",       "0x",
        "0xzz", "0o17",  "1__0",  "_1",   "1_",    "1._5", "1.5.2", "1e999", "1e-999",  "--1",
        "abc",  "0x_10", "1 000", "1e5x", "0b101", "+-1",  "0_1",   "1e1_",  "infinity"}) {
    EXPECT_FALSE(parse_number(text).ok()) << text;
  }
}

TEST(Number, IntegersKeepAll64Bits) {
  EXPECT_EQ(parse_number("9223372036854775807").integer, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_number("-9223372036854775808").integer, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_number("9007199254740993").integer, int64_t{9007199254740993});
  EXPECT_FALSE(parse_number("9223372036854775808").integer);
  EXPECT_FALSE(parse_number("1e18").integer) << "a double cannot promise every digit";
  EXPECT_FALSE(parse_number("0x8000000000000000").ok());
}

TEST(Number, SaysHowToWriteIt) {
  EXPECT_EQ(parse_number("010").remedy, "Write it without leading zeros: 10");
  EXPECT_EQ(parse_number("1:30").remedy, "Base-60 notation is not supported: write the number out");
  EXPECT_NE(parse_number("1,000").remedy.find("60_000"), std::string::npos);
  EXPECT_NE(parse_number("10M").remedy.find("10e6"), std::string::npos);
}

}  // namespace
}  // namespace heddle::config_internal
