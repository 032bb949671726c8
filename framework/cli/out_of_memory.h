// What is printed beside an error about memory: the plan of the run that did not fit.
#pragma once

#include <string>

#include "framework/comm/launch_context.h"
#include "framework/config/config.h"
#include "framework/core/error.h"

namespace heddle {

// Is this about memory that a device does not have?
bool out_of_memory(const Error& error);

// The memory that `heddle plan` computes for this run on the device it chose, and what to lower.
// Empty when not even that can be said.
std::string memory_plan(const Config& config, const LaunchContext& launch);

}  // namespace heddle
