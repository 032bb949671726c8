#include "framework/attention/names.h"

#include <gtest/gtest.h>

#include <cstring>

namespace heddle {
namespace {

TEST(Names, KnownAndUnknownValues) {
  EXPECT_EQ(status_name(HEDDLE_UNSUPPORTED), "UNSUPPORTED");
  EXPECT_EQ(status_name(HEDDLE_INTERNAL), "INTERNAL");
  EXPECT_EQ(status_name(42), "status 42");
  EXPECT_EQ(op_name(HEDDLE_OP_DECODE), "decode");
  EXPECT_EQ(op_name(9), "op 9");
  EXPECT_EQ(device_name(HEDDLE_DEVICE_CUDA), "cuda");
  EXPECT_EQ(device_name(10), "device type 10");
  EXPECT_EQ(feature_names(0), "");
  EXPECT_EQ(feature_names(HEDDLE_FEATURE_GQA | HEDDLE_FEATURE_KV_LEN | (uint64_t{1} << 17)),
            "GQA, KV_LEN, bit 17");
  EXPECT_EQ(property_names(HEDDLE_PROP_ALLOCATES | HEDDLE_PROP_NO_LSE),
            (std::vector<std::string>{"ALLOCATES", "NO_LSE"}));
}

TEST(Names, ReasonsReadAsGotNeedsHint) {
  heddle_attention_reason reason{};
  reason.code = HEDDLE_REASON_HEAD_DIM;
  std::strcpy(reason.field, "head_dim");
  std::strcpy(reason.got, "96");
  std::strcpy(reason.want, "in{64,128}");
  std::strcpy(reason.hint, "set n_embd/n_head to 128");
  EXPECT_EQ(reason_text(reason), "head_dim=96, needs in{64,128}; set n_embd/n_head to 128");
  reason.hint[0] = '\0';
  EXPECT_EQ(reason_text(reason), "head_dim=96, needs in{64,128}");
  EXPECT_EQ(reason_text(heddle_attention_reason{HEDDLE_REASON_OTHER, 0, {}, {}, {}, {}}),
            "reason 255");
}

TEST(Names, ReasonsWithoutANulEndWithTheirField) {
  heddle_attention_reason reason{};
  std::memset(reason.field, 'f', sizeof reason.field);
  EXPECT_EQ(reason_text(reason), std::string(sizeof reason.field, 'f'));
}

TEST(Names, ForeignTextIsMadeFitForTerminals) {
  EXPECT_EQ(clean_text("plain"), "plain");
  EXPECT_EQ(clean_text("two\nlines\t\x1b[31m\n"), "two lines  [31m");
  EXPECT_EQ(clean_text("caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80");
  EXPECT_EQ(clean_text("bad \xff\xc3"), "bad ??");
  EXPECT_EQ(clean_text("\xc0\xaf"), "??");            // overlong
  EXPECT_EQ(clean_text("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(clean_text("\xf4\x90\x80\x80"), "????");  // beyond U+10FFFF
  EXPECT_EQ(clean_text(std::string(500, 'x'), 10), "xxxxxxxxxx...");
  EXPECT_EQ(clean_text("abc\xc3\xa9", 4), "abc...");  // a letter is not cut in two
}

}  // namespace
}  // namespace heddle
