#include "framework/device/device.h"

#include "framework/core/error.h"

namespace heddle {

void Device::check_links() const {
  throw environment_error("device", description() + " has no links to those of other ranks",
                          "set dist.backend: auto, or device.kind: cuda");
}

std::string Device::make_link_id() {
  check_links();
  return {};
}

std::unique_ptr<DeviceLink> Device::connect(const std::string& /*id*/, int /*rank*/,
                                            int /*world_size*/) {
  check_links();
  return nullptr;
}

}  // namespace heddle
