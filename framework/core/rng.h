// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC 2011): value i of a stream is a
// pure function of (seed, stream, i), so the order of use and the number of ranks never matter.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace heddle {

// The ten-round Philox block function.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Rng {
 public:
  // Streams are named ("init/transformer.wte.weight", "recall/17", ...) and hashed.
  Rng(uint64_t seed, std::string_view stream);

  uint32_t next_u32();
  uint64_t next_u64();
  // Uniform in [0, 1), 24 random bits.
  float uniform();
  // Uniform in [0, n), n >= 1, without modulo bias.
  uint32_t below(uint32_t n);
  // Standard normal by Box and Muller.
  float normal();

  // Position in the stream, in 32-bit draws; set_position() makes a resume exact.
  uint64_t position() const { return position_; }
  void set_position(uint64_t position);

 private:
  void fill();

  std::array<uint32_t, 2> key_{};
  uint64_t stream_ = 0;
  uint64_t position_ = 0;
  std::array<uint32_t, 4> block_{};
};

// FNV-1a, 64 bits: names of streams, fingerprints of configurations.
uint64_t hash64(std::string_view text, uint64_t seed = 14695981039346656037ull);

}  // namespace heddle
