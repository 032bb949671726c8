#include "framework/core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace heddle {
namespace {

using Block = std::array<uint32_t, 4>;

// Known-answer vectors of Random123 (tests/kat_vectors, philox4x32 10).
TEST(Philox, PublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Vectors of the FNV specification, 64-bit FNV-1a.
TEST(Hash64, PublishedVectors) {
  EXPECT_EQ(hash64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(hash64("bar", hash64("foo")), hash64("foobar"));
}

TEST(Rng, IsPhiloxUnderSeedStreamAndPosition) {
  const uint64_t seed = 0x0123456789abcdefu, stream = hash64("init/lm_head.weight");
  Rng rng(seed, "init/lm_head.weight");
  for (uint32_t block = 0; block < 5; ++block) {
    const Block want =
        philox4x32({block, 0, static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                   {0x89abcdefu, 0x01234567u});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(rng.next_u32(), want[static_cast<size_t>(i)]);
  }
}

TEST(Rng, AnyPositionCanBeReached) {
  Rng rng(7, "s");
  std::vector<uint32_t> all;
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(rng.position(), static_cast<uint64_t>(i));
    all.push_back(rng.next_u32());
  }
  for (const size_t at : {0, 1, 3, 4, 5, 17, 31, 0}) {
    rng.set_position(at);
    for (size_t i = at; i < all.size(); ++i) ASSERT_EQ(rng.next_u32(), all[i]) << at;
  }
  // Beyond 2^32 blocks the counter's second word counts.
  rng.set_position(uint64_t{1} << 35);
  Rng low(7, "s");
  EXPECT_NE(rng.next_u32(), low.next_u32());
}

TEST(Rng, StreamsAndSeedsDiffer) {
  Rng a(1, "x"), b(1, "y"), c(2, "x"), again(1, "x");
  const uint64_t first = a.next_u64();
  EXPECT_NE(first, b.next_u64());
  EXPECT_NE(first, c.next_u64());
  EXPECT_EQ(first, again.next_u64());
}

TEST(Rng, UniformStaysInRangeAndIsFlat) {
  Rng rng(3, "uniform");
  constexpr int kDraws = 160000, kBins = 16;
  std::array<int, kBins> bins{};
  for (int i = 0; i < kDraws; ++i) {
    const float u = rng.uniform();
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi2 = 0;
  for (const int n : bins) chi2 += std::pow(n - kDraws / kBins, 2) / (kDraws / kBins);
  EXPECT_LT(chi2, 37.7);  // 15 degrees of freedom, p = 0.001
}

TEST(Rng, BelowIsFlatForAwkwardRanges) {
  Rng rng(4, "below");
  for (const uint32_t n : {1u, 2u, 3u, 7u, 10u}) {
    std::vector<int> bins(n);
    const int draws = 20000 * static_cast<int>(n);
    for (int i = 0; i < draws; ++i) {
      const uint32_t x = rng.below(n);
      ASSERT_LT(x, n);
      ++bins[x];
    }
    for (const int count : bins) EXPECT_NEAR(count, 20000, 5 * std::sqrt(20000.0)) << n;
  }
  // A third of 2^32 just missed: without rejection the low half would come up twice as often.
  const uint32_t n = 0xC0000000u;
  int low = 0;
  for (int i = 0; i < 30000; ++i) low += rng.below(n) < n / 3;
  EXPECT_NEAR(low, 10000, 5 * std::sqrt(10000.0));
}

TEST(Rng, NormalHasTheMomentsOfANormal) {
  Rng rng(5, "normal");
  constexpr int kDraws = 200000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    m1 += x, m2 += x * x, m3 += x * x * x, m4 += x * x * x * x;
  }
  const double s = 5 / std::sqrt(kDraws);  // five standard errors, for unit variance
  EXPECT_NEAR(m1 / kDraws, 0, s);
  EXPECT_NEAR(m2 / kDraws, 1, s * std::sqrt(2));
  EXPECT_NEAR(m3 / kDraws, 0, s * std::sqrt(15));
  EXPECT_NEAR(m4 / kDraws, 3, s * std::sqrt(96));
}

}  // namespace
}  // namespace heddle
