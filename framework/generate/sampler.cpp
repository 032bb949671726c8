#include "framework/generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "framework/core/error.h"

namespace heddle {

Sampler::Sampler(const SamplerOptions& options, std::string_view stream)
    : options_(options), rng_(options.seed, stream) {
  if (!(options.temperature >= 0.0f)) {
    throw config_error(fmt::format("temperature: got {}, expected at least 0", options.temperature),
                       "use 0 for the most likely token, 1 for the model's own distribution");
  }
  if (options.top_k < 0) {
    throw config_error(fmt::format("top_k: got {}, expected at least 0", options.top_k),
                       "use 0 to sample among all tokens");
  }
}

// The largest value first, as several maxima side by side that need not wait for each other; then
// its first place.
int32_t argmax(const float* logits, int64_t n) {
  constexpr int64_t kSide = 16;
  if (n < kSide) return static_cast<int32_t>(std::max_element(logits, logits + n) - logits);
  std::array<float, kSide> best;
  std::copy_n(logits, kSide, best.begin());
  int64_t i = kSide;
  for (; i + kSide <= n; i += kSide) {
    for (int64_t j = 0; j < kSide; ++j) {
      best[j] = logits[i + j] > best[j] ? logits[i + j] : best[j];
    }
  }
  float top = *std::max_element(best.begin(), best.end());
  for (; i < n; ++i) top = std::max(top, logits[i]);
  const float* const at = std::find(logits, logits + n, top);
  return at == logits + n ? 0 : static_cast<int32_t>(at - logits);
}

int32_t Sampler::sample(const float* logits, int64_t vocab) {
  const bool has_nan = std::any_of(logits, logits + vocab, [](float z) { return std::isnan(z); });
  const int32_t best = argmax(logits, vocab);
  if (has_nan || !std::isfinite(logits[best])) {
    throw numerics_error("the logits of the next token are not finite",
                         "use an earlier checkpoint");
  }
  return options_.temperature == 0.0f ? best : draw(logits, vocab);
}

int32_t Sampler::draw(const float* logits, int64_t vocab) {
  const int64_t kept = options_.top_k == 0 ? vocab : std::min(options_.top_k, vocab);
  ids_.resize(static_cast<size_t>(vocab));
  std::iota(ids_.begin(), ids_.end(), 0);
  if (kept < vocab) {
    std::partial_sort(ids_.begin(), ids_.begin() + kept, ids_.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
  }
  const double top = static_cast<double>(logits[argmax(logits, vocab)]);
  weights_.resize(static_cast<size_t>(kept));
  double sum = 0.0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const double z = static_cast<double>(logits[ids_[i]]);
    sum += std::exp((z - top) / static_cast<double>(options_.temperature));
    weights_[i] = sum;
  }
  const double point = static_cast<double>(rng_.uniform()) * sum;
  const auto at = std::upper_bound(weights_.begin(), weights_.end(), point);
  const auto place = std::min<std::ptrdiff_t>(at - weights_.begin(), kept - 1);
  return ids_[static_cast<size_t>(place)];
}

}  // namespace heddle
