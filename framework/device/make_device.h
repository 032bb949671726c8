// The device that a configuration asks for.
#pragma once

#include <memory>

#include "framework/config/config.h"
#include "framework/device/device.h"

namespace heddle {

// The ordinal of a rank's device among the `visible` ones of a host with `local_size` ranks: its
// local rank; 0 where one is visible, as launchers do that show each rank its own. Throws
// environment_error with both numbers when there are several, but fewer than ranks.
int device_of_rank(int visible, int local_rank, int local_size);

// device.kind auto: CUDA when its module is there and finds a device, else the CPU; `note`, if
// given, says why it is the CPU where the module is there. Throws heddle::Error (environment) when
// the wanted device cannot be used.
std::unique_ptr<Device> make_device(const DeviceConfig& config, int local_rank = 0,
                                    int local_size = 1, std::string* note = nullptr);

}  // namespace heddle
