#include "framework/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace heddle {
namespace {

bool is_bijection(int64_t n, uint64_t seed) {
  const Permutation order(n, seed, "test");
  std::vector<bool> seen(static_cast<size_t>(n), false);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t to = order(i);
    if (to < 0 || to >= n || seen[static_cast<size_t>(to)]) return false;
    seen[static_cast<size_t>(to)] = true;
  }
  return true;
}

TEST(PermutationTest, IsABijectionForEverySmallSize) {
  for (int64_t n = 1; n <= 300; ++n) EXPECT_TRUE(is_bijection(n, static_cast<uint64_t>(n))) << n;
}

TEST(PermutationTest, IsABijectionRoundPowersOfTwo) {
  for (const int64_t n : {4095, 4096, 4097, 65535, 65536, 65537, 100003}) {
    EXPECT_TRUE(is_bijection(n, 7)) << n;
  }
}

TEST(PermutationTest, StaysInsideHugeSets) {
  const int64_t n = (int64_t{1} << 40) + 12345;
  const Permutation order(n, 1, "test");
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(order(n - 1 - i), 0);
    EXPECT_LT(order(n - 1 - i), n);
  }
}

TEST(PermutationTest, SeedAndStreamDecideTheOrder) {
  const int64_t n = 1000;
  const Permutation a(n, 1, "epoch/0"), again(n, 1, "epoch/0"), b(n, 1, "epoch/1"),
      c(n, 2, "epoch/0");
  int same_b = 0, same_c = 0;
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(a(i), again(i));
    same_b += a(i) == b(i) ? 1 : 0;
    same_c += a(i) == c(i) ? 1 : 0;
  }
  // One match in n is what chance gives.
  EXPECT_LT(same_b, 10);
  EXPECT_LT(same_c, 10);
}

TEST(PermutationTest, SpreadsNeighboursApart) {
  // Two random places of [0, n) are n/3 apart on average, with a standard deviation of the mean of
  // n sqrt(1/18) / sqrt(n).
  const int64_t n = 10000;
  const Permutation order(n, 3, "test");
  double from_self = 0, from_neighbour = 0;
  for (int64_t i = 0; i < n; ++i) {
    from_self += std::abs(static_cast<double>(order(i) - i));
    from_neighbour += std::abs(static_cast<double>(order(i) - order((i + 1) % n)));
  }
  EXPECT_NEAR(from_self / n / n, 1.0 / 3, 0.02);
  EXPECT_NEAR(from_neighbour / n / n, 1.0 / 3, 0.02);
}

}  // namespace
}  // namespace heddle
