#include "framework/device/ops.h"

#include <cmath>

namespace heddle {

AdamWValues AdamWStep::values() const {
  const auto count = static_cast<double>(step);
  const double bias1 = 1.0 - std::pow(static_cast<double>(beta1), count);
  const double bias2 = 1.0 - std::pow(static_cast<double>(beta2), count);
  return {beta1,
          beta2,
          eps,
          static_cast<float>(1.0 - static_cast<double>(lr) * weight_decay),
          static_cast<float>(lr / bias1),
          static_cast<float>(1.0 / std::sqrt(bias2)),
          grad_scale};
}

double Ops::sum_squares(const float* x, int64_t n) {
  const std::span<const float> all(x, static_cast<size_t>(n));
  double sum = 0;
  sums_of_squares({&all, 1}, &sum);
  return sum;
}

}  // namespace heddle
