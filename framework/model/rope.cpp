#include "framework/model/rope.h"

#include <cmath>
#include <vector>

namespace heddle {

RopeTable::RopeTable(const ModelSpec& spec, Device& device, int64_t positions)
    : positions_(positions), elements_(positions * (spec.head_dim / 2)) {
  const int64_t half = spec.head_dim / 2;
  std::vector<float> inverse(static_cast<size_t>(half));
  for (int64_t j = 0; j < half; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(spec.head_dim);
    inverse[static_cast<size_t>(j)] = 1.0f / std::pow(static_cast<float>(spec.rope_base), exponent);
  }
  std::vector<float> table(2 * static_cast<size_t>(elements_));
  for (int64_t i = 0; i < elements_; ++i) {
    const float angle = static_cast<float>(i / half) * inverse[static_cast<size_t>(i % half)];
    table[static_cast<size_t>(i)] = std::cos(angle);
    table[static_cast<size_t>(i + elements_)] = std::sin(angle);
  }
  data_ = device.allocate(bytes(), "rotary table");
  device.upload(data_.get(), table.data(), bytes());
}

}  // namespace heddle
