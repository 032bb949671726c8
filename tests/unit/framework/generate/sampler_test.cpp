#include "framework/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/core/error.h"

namespace heddle {
namespace {

const std::vector<float> kLogits = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};

std::vector<int> histogram(Sampler sampler, int draws) {
  std::vector<int> counts(kLogits.size());
  for (int i = 0; i < draws; ++i) ++counts[static_cast<size_t>(sampler.sample(kLogits.data(), 5))];
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLargest) {
  Sampler sampler({.temperature = 0.0f}, "s");
  EXPECT_EQ(sampler.sample(kLogits.data(), 5), 1);
  EXPECT_EQ(argmax(kLogits.data(), 5), 1);
}

TEST(Sampler, FirstOfTheLargestOfAnyNumber) {
  for (int64_t n = 1; n <= 70; ++n) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> z(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) z[i] = static_cast<float>(-1 - i * 7 % 13);
      z[at] = -0.5f;
      EXPECT_EQ(argmax(z.data(), n), at) << n;
      z.back() = -0.5f;
      EXPECT_EQ(argmax(z.data(), n), at) << n;
    }
  }
}

TEST(Sampler, DrawsFromTheSoftmax) {
  constexpr int kDraws = 20000;
  for (const float temperature : {1.0f, 0.5f}) {
    const auto counts = histogram(Sampler({.temperature = temperature}, "s"), kDraws);
    double sum = 0.0;
    for (const float z : kLogits) sum += std::exp(static_cast<double>(z / temperature));
    for (size_t i = 0; i < kLogits.size(); ++i) {
      const double p = std::exp(static_cast<double>(kLogits[i] / temperature)) / sum;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(counts[i], kDraws * p, 5.0 * std::sqrt(kDraws * p * (1.0 - p)) + 1.0) << i;
    }
  }
}

TEST(Sampler, TopKKeepsTheLargestAndTheLowerIdOfEquals) {
  const auto one = histogram(Sampler({.top_k = 1}, "s"), 100);
  EXPECT_EQ(one[1], 100);
  const auto three = histogram(Sampler({.top_k = 3}, "s"), 2000);
  EXPECT_EQ(three[0] + three[4], 0);
  EXPECT_GT(std::min({three[1], three[2], three[3]}), 0);
  const auto all = histogram(Sampler({.top_k = 50}, "s"), 2000);
  EXPECT_GT(all[4], 0);
}

TEST(Sampler, SeedAndStreamDecide) {
  const auto text = [](uint64_t seed, const char* stream) {
    Sampler sampler({.seed = seed}, stream);
    std::vector<int32_t> out;
    for (int i = 0; i < 40; ++i) out.push_back(sampler.sample(kLogits.data(), 5));
    return out;
  };
  EXPECT_EQ(text(1, "a"), text(1, "a"));
  EXPECT_NE(text(1, "a"), text(2, "a"));
  EXPECT_NE(text(1, "a"), text(1, "b"));
}

TEST(Sampler, RefusesNonsense) {
  EXPECT_THROW(Sampler({.temperature = -1.0f}, "s"), Error);
  EXPECT_THROW(Sampler({.temperature = std::nanf("")}, "s"), Error);
  EXPECT_THROW(Sampler({.top_k = -1}, "s"), Error);
  Sampler sampler({}, "s");
  const float nan[] = {1.0f, std::nanf(""), 0.0f};
  const float infinite[] = {1.0f, std::numeric_limits<float>::infinity(), 0.0f};
  for (const float* bad : {nan, infinite}) {
    try {
      sampler.sample(bad, 3);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kNumerics);
    }
  }
}

}  // namespace
}  // namespace heddle
