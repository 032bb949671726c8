#include "framework/core/rng.h"

#include <cmath>
#include <numbers>

namespace heddle {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  constexpr uint64_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57;
  constexpr uint32_t kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kM0 * c[0], p1 = kM1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += kW0;
    k[1] += kW1;
  }
  return c;
}

uint64_t hash64(std::string_view text, uint64_t seed) {
  uint64_t h = seed;
  for (const char ch : text) {
    h ^= static_cast<unsigned char>(ch);
    h *= 1099511628211ull;
  }
  return h;
}

Rng::Rng(uint64_t seed, std::string_view stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      stream_(hash64(stream)) {
  fill();
}

void Rng::fill() {
  const uint64_t block = position_ / 4;
  block_ = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                       static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                      key_);
}

void Rng::set_position(uint64_t position) {
  position_ = position;
  fill();
}

uint32_t Rng::next_u32() {
  const uint32_t value = block_[position_ % 4];
  if (++position_ % 4 == 0) fill();
  return value;
}

uint64_t Rng::next_u64() {
  const uint64_t high = next_u32();
  return high << 32 | next_u32();
}

float Rng::uniform() { return static_cast<float>(next_u32() >> 8) * 0x1.0p-24f; }

uint32_t Rng::below(uint32_t n) {
  // Lemire's multiply-and-reject (arXiv 1805.10941).
  uint64_t m = uint64_t{next_u32()} * n;
  const uint32_t threshold = (0u - n) % n;
  while (static_cast<uint32_t>(m) < threshold) m = uint64_t{next_u32()} * n;
  return static_cast<uint32_t>(m >> 32);
}

float Rng::normal() {
  const float u = 1.0f - uniform();  // (0, 1]
  const float v = uniform();
  return std::sqrt(-2.0f * std::log(u)) * std::cos(2.0f * std::numbers::pi_v<float> * v);
}

}  // namespace heddle
