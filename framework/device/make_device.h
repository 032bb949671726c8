// The device that a configuration asks for.
#pragma once

#include <memory>

#include "framework/config/config.h"
#include "framework/device/device.h"

namespace heddle {

// device.kind auto: CUDA when its module is there and finds a device, else the CPU; `note`, if
// given, says why it is the CPU where the module is there. Of several visible devices the rank takes number local_rank; where
// one is visible (as launchers do with CUDA_VISIBLE_DEVICES) it takes that. Throws heddle::Error
// (environment) when the wanted device cannot be used.
std::unique_ptr<Device> make_device(const DeviceConfig& config, int local_rank,
                                    std::string* note = nullptr);

}  // namespace heddle
