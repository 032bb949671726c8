// The next token from logits.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/core/rng.h"

namespace heddle {

struct SamplerOptions {
  float temperature = 1.0f;  // 0: the most likely token, no randomness
  int64_t top_k = 0;         // sample among the k most likely; 0: all
  uint64_t seed = 0;
};

// Draws from softmax(logits / temperature) over the top_k. Equal logits count in order of id. One
// draw uses one value of the stream, so a text depends on (seed, stream) and nothing else.
class Sampler {
 public:
  // Throws heddle::Error (config) for a negative temperature or top_k.
  Sampler(const SamplerOptions& options, std::string_view stream);

  // Throws heddle::Error (numerics) when no logit is a finite maximum.
  int32_t sample(const float* logits, int64_t vocab);

 private:
  int32_t draw(const float* logits, int64_t vocab);

  SamplerOptions options_;
  Rng rng_;
  std::vector<int32_t> ids_;
  std::vector<double> weights_;
};

// The lowest id among the largest logits.
int32_t argmax(const float* logits, int64_t n);

}  // namespace heddle
