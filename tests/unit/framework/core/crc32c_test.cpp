#include "framework/core/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace heddle {
namespace {

uint32_t crc(const std::string& s) {
  return crc32c(s.data(), s.size());
}

// Vectors of RFC 3720 B.4 and the usual check value.
TEST(Crc32c, PublishedVectors) {
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc("123456789"), 0xe3069283u);
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc(up), 0x46dd794eu);
  EXPECT_EQ(crc(down), 0x113fdb5cu);
  EXPECT_EQ(crc(""), 0u);
}

TEST(Crc32c, EqualsTheBitwiseDefinitionAtEveryLengthAndAlignment) {
  const auto bitwise = [](const std::string& s) {
    uint32_t c = 0xffffffffu;
    for (const char ch : s) {
      c ^= static_cast<unsigned char>(ch);
      for (int i = 0; i < 8; ++i) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    }
    return ~c;
  };
  std::string text;
  for (int i = 0; i < 80; ++i) text += static_cast<char>(i * 37 + 11);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t n = 0; begin + n <= text.size(); ++n) {
      ASSERT_EQ(crc32c(text.data() + begin, n), bitwise(text.substr(begin, n)));
    }
  }
}

TEST(Crc32c, ContinuesOverPieces) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t first = crc32c(text.data(), cut);
    EXPECT_EQ(crc32c(text.data() + cut, text.size() - cut, first), crc(text));
  }
}

}  // namespace
}  // namespace heddle
