// cos and sin of rotary position embeddings, on the device.
#pragma once

#include <cstdint>

#include "framework/device/device.h"
#include "framework/model/spec.h"

namespace heddle {

// (positions, D/2) each. All steps are in fp32, as nanochat computes its table: inverse frequency
// 1 / base^(2j/D), angle = position * inverse frequency, cos and sin of that.
class RopeTable {
 public:
  RopeTable(const ModelSpec& spec, Device& device, int64_t positions);

  const float* cos() const { return static_cast<const float*>(data_.get()); }
  const float* sin() const { return cos() + elements_; }
  int64_t positions() const { return positions_; }
  size_t bytes() const { return 2 * static_cast<size_t>(elements_) * sizeof(float); }

 private:
  int64_t positions_;
  int64_t elements_;
  DeviceBuffer data_;
};

}  // namespace heddle
