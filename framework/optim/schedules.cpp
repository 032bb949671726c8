#include "framework/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heddle {
namespace {

// Half goes to the even neighbour, as Python's round does.
int64_t warmdown_steps(const OptimConfig& config, int64_t num_iterations) {
  return static_cast<int64_t>(
      std::nearbyint(config.warmdown_ratio * static_cast<double>(num_iterations)));
}

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

double half_cosine(double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

bool is_cosine(const OptimConfig& config) {
  return config.schedule == "cosine" || (config.schedule == "auto" && config.kind == "adamw");
}

}  // namespace

double lr_multiplier(const OptimConfig& config, int64_t num_iterations, int64_t iteration) {
  const int64_t it = std::min(iteration, num_iterations);
  if (it < config.warmup_steps) return share(it + 1, config.warmup_steps);
  double above_final = 1.0;  // share of the way between final_lr_frac and 1
  if (is_cosine(config)) {
    above_final =
        half_cosine(share(it - config.warmup_steps, num_iterations - config.warmup_steps));
  } else {
    const int64_t warmdown = warmdown_steps(config, num_iterations);
    if (it > num_iterations - warmdown) above_final = share(num_iterations - it, warmdown);
  }
  return above_final + (1.0 - above_final) * config.final_lr_frac;
}

double muon_momentum(const OptimConfig& config, int64_t num_iterations, int64_t iteration) {
  const int64_t it = std::min(iteration, num_iterations);
  if (it < config.muon_momentum_warmup_steps) {
    const double frac = share(it, config.muon_momentum_warmup_steps);
    return (1.0 - frac) * config.muon_momentum_start + frac * config.muon_momentum;
  }
  const int64_t warmdown = warmdown_steps(config, num_iterations);
  const int64_t start = num_iterations - warmdown;
  if (warmdown == 0 || it < start) return config.muon_momentum;
  const double frac = share(it - start, warmdown);
  return (1.0 - frac) * config.muon_momentum + frac * config.muon_momentum_final;
}

double muon_weight_decay(const OptimConfig& config, int64_t num_iterations, int64_t iteration) {
  const int64_t it = std::min(iteration, num_iterations);
  return config.weight_decay * half_cosine(share(it, num_iterations));
}

BatchScaling batch_scaling(int64_t total_batch_size, int64_t scaling_params,
                           int64_t reference_scaling_params) {
  constexpr double kReferenceBatch = 1 << 19;  // tokens
  const double root = std::sqrt(static_cast<double>(total_batch_size) / kReferenceBatch);
  return {root, root * static_cast<double>(reference_scaling_params) /
                    static_cast<double>(scaling_params)};
}

}  // namespace heddle
