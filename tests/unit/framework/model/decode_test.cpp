#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"
#include "framework/model/gpt.h"
#include "tests/unit/framework/model/tiny_model.h"

namespace heddle {
namespace {

using heddle::testing::load_random;
using heddle::testing::random_tokens;
using heddle::testing::relative_l2;
using heddle::testing::TestModel;

// 40 positions, so that windows of 2 and 4 have moved on and the prompt exceeds small plans.
constexpr int64_t kLength = 40;

class Decode : public ::testing::Test {
 protected:
  Decode() : spec(make_spec()), full(spec, 2, kLength, false) {
    load_random(full);
    tokens = random_tokens(2 * kLength, spec.vocab_size);
    expected.resize(static_cast<size_t>(2 * kLength * spec.vocab_size));
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < 2 * kLength; ++i) rows.push_back(i);
    full.gpt.logits(tokens.data(), 2, rows.data(), 2 * kLength, expected.data());
  }
  static ModelSpec make_spec() {
    ModelConfig c = heddle::testing::tiny_config();
    c.sequence_len = kLength;
    return resolve_model(c, 0);
  }
  const float* want(int64_t row, int64_t t) const {
    return expected.data() + (row * kLength + t) * spec.vocab_size;
  }
  void expect_logits(const float* got, int64_t row, int64_t t) const {
    EXPECT_LE(relative_l2(got, want(row, t), spec.vocab_size), 5e-6) << row << " " << t;
  }
  std::vector<int32_t> slice(int64_t row, int64_t begin, int64_t end) const {
    return {tokens.begin() + row * kLength + begin, tokens.begin() + row * kLength + end};
  }

  ModelSpec spec;
  TestModel full;
  std::vector<int32_t> tokens;
  std::vector<float> expected;
};

TEST_F(Decode, PrefillGivesTheLogitsOfAForwardPass) {
  KvCache cache(spec, *full.host.device, 2, kLength);
  std::vector<float> got(expected.size());
  full.gpt.decode(tokens.data(), 2, kLength, cache, got.data(), {.all_positions = true});
  EXPECT_LE(relative_l2(got.data(), expected.data(), static_cast<int64_t>(got.size())), 5e-6);
  EXPECT_EQ(cache.length(0), kLength);
}

TEST_F(Decode, AnySplitIntoCallsGivesTheSame) {
  KvCache cache(spec, *full.host.device, 2, kLength + 3);
  std::vector<float> got(static_cast<size_t>(2 * spec.vocab_size));
  int64_t begin = 0;
  for (const int64_t count : {1, 1, 5, 1, 12, 1, 1, 18}) {
    std::vector<int32_t> part;
    for (int64_t row = 0; row < 2; ++row) {
      const auto piece = slice(row, begin, begin + count);
      part.insert(part.end(), piece.begin(), piece.end());
    }
    full.gpt.decode(part.data(), 2, count, cache, got.data());
    begin += count;
    for (int64_t row = 0; row < 2; ++row) {
      expect_logits(got.data() + row * spec.vocab_size, row, begin - 1);
    }
  }
}

TEST_F(Decode, RowsOfDifferentLengths) {
  KvCache cache(spec, *full.host.device, 2, kLength);
  std::vector<float> got(static_cast<size_t>(2 * spec.vocab_size));
  full.gpt.decode(tokens.data(), 1, 5, cache, got.data(), {.first_row = 0});
  full.gpt.decode(tokens.data() + kLength, 1, 21, cache, got.data(), {.first_row = 1});
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_EQ(cache.length(1), 21);
  for (int64_t step = 0; step < 6; ++step) {
    const int32_t next[] = {tokens[static_cast<size_t>(5 + step)],
                            tokens[static_cast<size_t>(kLength + 21 + step)]};
    full.gpt.decode(next, 2, 1, cache, got.data());
    expect_logits(got.data(), 0, 5 + step);
    expect_logits(got.data() + spec.vocab_size, 1, 21 + step);
  }
}

TEST_F(Decode, AFreshRowBesideAnOldOne) {
  KvCache cache(spec, *full.host.device, 2, kLength);
  std::vector<float> got(static_cast<size_t>(2 * spec.vocab_size));
  full.gpt.decode(tokens.data(), 1, 7, cache, got.data());
  const int32_t next[] = {tokens[7], tokens[kLength]};
  full.gpt.decode(next, 2, 1, cache, got.data());
  expect_logits(got.data(), 0, 7);
  expect_logits(got.data() + spec.vocab_size, 1, 0);
}

TEST_F(Decode, PromptsLongerThanThePlanAreReadInPieces) {
  TestModel small(spec, 1, 16, true);  // training buffers serve as well
  load_random(small);
  KvCache cache(spec, *small.host.device, 2, kLength);
  std::vector<float> got(expected.size());
  small.gpt.decode(tokens.data(), 2, kLength, cache, got.data(), {.all_positions = true});
  EXPECT_LE(relative_l2(got.data(), expected.data(), static_cast<int64_t>(got.size())), 5e-6);
  cache.reset();
  got.resize(static_cast<size_t>(2 * spec.vocab_size));
  small.gpt.decode(tokens.data(), 2, kLength, cache, got.data());
  expect_logits(got.data(), 0, kLength - 1);
  expect_logits(got.data() + spec.vocab_size, 1, kLength - 1);
}

TEST_F(Decode, OverflowIsRefusedBeforeAnythingIsWritten) {
  KvCache cache(spec, *full.host.device, 1, 10);
  std::vector<float> got(static_cast<size_t>(spec.vocab_size));
  full.gpt.decode(tokens.data(), 1, 8, cache, got.data());
  try {
    full.gpt.decode(tokens.data() + 20, 1, 3, cache, got.data());
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("holds 10 tokens; row 0 has 8 and 3 more"));
  }
  EXPECT_EQ(cache.length(0), 8);
  full.gpt.decode(tokens.data() + 8, 1, 2, cache, got.data());
  expect_logits(got.data(), 0, 9);
  EXPECT_THROW(full.gpt.decode(tokens.data(), 2, 1, cache, got.data()), Error);
}

TEST_F(Decode, BadTokensAreRefusedBeforeAnythingIsWritten) {
  TestModel small(spec, 1, 4, false);
  load_random(small);
  KvCache cache(spec, *small.host.device, 1, kLength);
  std::vector<float> got(static_cast<size_t>(spec.vocab_size));
  std::vector<int32_t> bad = slice(0, 0, 10);
  bad[9] = 37;
  EXPECT_THROW(small.gpt.decode(bad.data(), 1, 10, cache, got.data()), Error);
  EXPECT_EQ(cache.length(0), 0);
  small.gpt.decode(tokens.data(), 1, 10, cache, got.data());
  expect_logits(got.data(), 0, 9);
}

TEST_F(Decode, ResetForgets) {
  KvCache cache(spec, *full.host.device, 1, kLength);
  std::vector<float> got(static_cast<size_t>(spec.vocab_size));
  full.gpt.decode(tokens.data() + kLength, 1, 30, cache, got.data());
  cache.reset();
  full.gpt.decode(tokens.data(), 1, 12, cache, got.data());
  expect_logits(got.data(), 0, 11);
}

}  // namespace
}  // namespace heddle
