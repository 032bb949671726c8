// A seeded bijection of [0, n) that needs no memory: a Feistel network over the next even number of
// bits, walked until the value falls inside (Black and Rogaway, CT-RSA 2002).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace heddle {

class Permutation {
 public:
  // n >= 1. The same (n, seed, stream) gives the same order everywhere.
  Permutation(int64_t n, uint64_t seed, std::string_view stream);

  // Where index i of [0, n) goes.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t scramble(uint64_t x) const;

  uint64_t n_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace heddle
