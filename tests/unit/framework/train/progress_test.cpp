#include "framework/train/progress.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Progress, DurationsReadAsClocks) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-5), "0:00");
}

TEST(Progress, CountsHaveThreeDigits) {
  EXPECT_EQ(format_count(999.4), "999");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(1.25e6), "1.25M");
  EXPECT_EQ(format_count(999.6e6), "1G");
}

TEST(Progress, LineNamesWhatMatters) {
  const std::string line = format_step({.step = 7, .total = 180, .loss = 1.93214,
                                        .bits_per_byte = 0.6, .lr_multiplier = 0.5,
                                        .tokens_per_second = 14200, .mfu = 0.452,
                                        .seconds_left = 61});
  EXPECT_EQ(line, "step   7/180  loss 1.9321  bpb 0.600  lr 0.50  14.2k tok/s  mfu 45%  eta 1:01");
}

TEST(Progress, UnknownsAreLeftOut) {
  const std::string line = format_step({.step = 1, .total = 2, .mfu = -1});
  EXPECT_EQ(line.find("mfu"), std::string::npos);
  EXPECT_EQ(line.find("bpb"), std::string::npos);
}

}  // namespace
}  // namespace heddle
