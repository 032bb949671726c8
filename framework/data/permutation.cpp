#include "framework/data/permutation.h"

#include <algorithm>
#include <bit>

#include "framework/core/error.h"
#include "framework/core/rng.h"

namespace heddle {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

}  // namespace

Permutation::Permutation(int64_t n, uint64_t seed, std::string_view stream)
    : n_(static_cast<uint64_t>(n)) {
  HEDDLE_CHECK(n >= 1, "a permutation of nothing");
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(n_ - 1)) + 1) / 2);
  Rng rng(seed, stream);
  for (uint64_t& key : keys_) key = rng.next_u64();
}

uint64_t Permutation::scramble(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(right + key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  HEDDLE_CHECK(x < n_, "index outside the permutation");
  do {
    x = scramble(x);
  } while (x >= n_);
  return static_cast<int64_t>(x);
}

}  // namespace heddle
