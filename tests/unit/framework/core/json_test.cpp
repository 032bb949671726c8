#include "framework/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "framework/core/error.h"
#include "framework/core/rng.h"
#include "tests/support/temp_folder.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using test::put_file;
using test::MemoryFolder;

std::string refusal(std::string_view text) {
  try {
    json::parse_strict(text);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Json, PrettyRoundTrips) {
  const json::value v = json::parse(R"({"a":1,"b":[1,2.5,"x\n\"y",null,true],"c":{},"d":[],
      "e":{"f":{"g":-3,"h":18446744073709551615}},"list":[{"k":1},{"k":[2]}],"é":"ü"})");
  const std::string text = json::pretty(v);
  EXPECT_EQ(json::parse(text), v);
  EXPECT_EQ(json::parse_strict(text), v);
  EXPECT_EQ(json::pretty(json::parse_strict(text)), text);
  EXPECT_EQ(json::pretty(json::parse(R"({"a":1,"b":{"c":[1,2]}})")),
            "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": [1, 2]\n  }\n}\n");
  EXPECT_EQ(json::pretty(json::object{}), "{}\n");
}

TEST(Json, StrictAgreesWithBoost) {
  for (const char* text :
       {"{}", "[]", " [1, -2, 3.5e2, \"a\\u00e9\\n\", null, true, false] \n", "3", "-0.0",
        "9223372036854775807", "9223372036854775808", R"({"a":{"a":1},"b":[{"a":2},{"a":3}]})"}) {
    EXPECT_EQ(json::parse_strict(text), json::parse(text)) << text;
  }
}

TEST(Json, DoublesComeBackToTheBit) {
  Rng rng(1, "json");
  for (int i = 0; i < 20000; ++i) {
    const double d = i % 2 ? std::bit_cast<double>(rng.next_u64())
                           : std::ldexp(static_cast<double>(rng.next_u64()), -70);
    if (!std::isfinite(d)) continue;
    const json::value back = json::parse_strict(json::serialize(json::array{d}));
    ASSERT_EQ(std::bit_cast<uint64_t>(back.at(0).as_double()), std::bit_cast<uint64_t>(d));
  }
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_THAT(refusal(R"({"a":1,"a":2})"), HasSubstr("\"a\" appears twice at byte"));
  EXPECT_THAT(refusal(R"({"a":1,"\u0061":2})"), HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(refusal(R"({"":1,"":2})"), HasSubstr("\"\" appears twice"));
  EXPECT_THAT(refusal(R"([{"x":{"y":1,"z":{},"y":1}}])"), HasSubstr("\"y\" appears twice"));
}

TEST(Json, BadTextIsRefusedWithThePlace) {
  for (const char* text : {"", " ", "{", "[1,2", "{\"a\":}", "1 2", "{} x", "nul", "NaN", "[1,]",
                           "\"\xff\"", "'a'", "{\"a\":1,}", "01"}) {
    EXPECT_THAT(refusal(text), HasSubstr(" at byte ")) << text;
  }
  EXPECT_NE(refusal(std::string_view("{}\0", 3)), "accepted");
  EXPECT_NE(refusal(std::string(100000, '[')), "accepted");
}

TEST(Json, ReadFileNamesTheFile) {
  MemoryFolder temp;
  put_file(temp / "good", "{\"a\": [1]}\n");
  EXPECT_EQ(json::read_file(temp / "good").at("a").at(0).as_int64(), 1);
  for (const std::string name : {"bad", "absent"}) {
    put_file(temp / "bad", "{\"a\" 1}");
    try {
      json::read_file(temp / name);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kEnvironment);
      EXPECT_THAT(e.what(), HasSubstr(temp / name));
    }
  }
}

}  // namespace
}  // namespace heddle
