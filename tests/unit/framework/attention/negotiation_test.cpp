#include "framework/attention/negotiation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/attention/plugin.h"
#include "tests/unit/framework/attention/fixtures.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;

class NegotiationTest : public ::testing::Test {
 protected:
  NegotiationTest() : table_(PluginLibrary::load(test::fixture("naive")).table()) {}
  std::string complaint() {
    return test::error_of([&] { check_plugin_table(&table_); });
  }
  heddle_attention_plugin table_;
};

TEST_F(NegotiationTest, AcceptsTheCurrentTable) {
  EXPECT_NO_THROW(check_plugin_table(&table_));
}

TEST_F(NegotiationTest, AcceptsALaterMinorWithLongerStructs) {
  table_.abi_minor = 7;
  table_.struct_size += 64;
  table_.problem_size += 16;
  table_.call_size += 8;
  table_.known_features |= uint64_t{1} << 20;
  EXPECT_NO_THROW(check_plugin_table(&table_));
}

TEST_F(NegotiationTest, AcceptsDecodeOnlyAndInferenceOnly) {
  table_.backward = nullptr;
  EXPECT_NO_THROW(check_plugin_table(&table_));
  table_.forward = nullptr;
  EXPECT_NO_THROW(check_plugin_table(&table_));
}

TEST_F(NegotiationTest, RefusesOtherMagicAndMajors) {
  table_.magic = 0x1234;
  EXPECT_THAT(complaint(), HasSubstr("magic 0x00001234, expected 0x4c444548"));
  table_.magic = HEDDLE_ATTENTION_MAGIC;
  table_.abi_major = 2;
  EXPECT_THAT(complaint(), HasSubstr("says ABI major 2"));
}

TEST_F(NegotiationTest, RefusesSizesThatLie) {
  const heddle_attention_plugin good = table_;
  for (const uint32_t size :
       {0u, 8u, uint32_t{sizeof table_} - 8, uint32_t{sizeof table_} + 4, 1u << 20}) {
    table_.struct_size = size;
    EXPECT_THAT(complaint(), HasSubstr("says heddle_attention_plugin is")) << size;
  }
  table_ = good;
  table_.problem_size -= 8;
  EXPECT_THAT(complaint(), HasSubstr("says heddle_attention_problem is"));
  table_ = good;
  table_.call_size = 0;
  EXPECT_THAT(complaint(), HasSubstr("says heddle_attention_call is 0 bytes"));
}

TEST_F(NegotiationTest, RefusesBadNames) {
  const std::string long_name(65, 'a');
  for (const char* name : {"", "Flash", "a b", "a-b", "auto", "\xc3\xa9", long_name.c_str()}) {
    table_.name = name;
    EXPECT_THAT(complaint(), HasSubstr("calls itself")) << name;
  }
  table_.name = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("calls itself ''"));
  table_.name = "flash_3";
  EXPECT_NO_THROW(check_plugin_table(&table_));
}

TEST_F(NegotiationTest, RefusesMissingFunctionsAndStrings) {
  const heddle_attention_plugin good = table_;
  table_.create = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("no create function"));
  table_ = good;
  table_.destroy = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("no destroy function"));
  table_ = good;
  table_.query = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("no query function"));
  table_ = good;
  table_.forward = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("no forward function"));
  table_ = good;
  table_.version = nullptr;
  EXPECT_THAT(complaint(), HasSubstr("no version"));
  table_ = good;
  table_.device_type = 10;
  EXPECT_THAT(complaint(), HasSubstr("serves device type 10"));
  EXPECT_THAT(test::error_of([] { check_plugin_table(nullptr); }), HasSubstr("no table"));
}

}  // namespace
}  // namespace heddle
