// Reading single values of a launch environment, for launch_context.cpp and launch_endpoint.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "framework/comm/launch_context.h"
#include "framework/core/error.h"

namespace heddle::launch_values {

bool has(const Environment& env, const char* name);
// Digits only.
std::optional<int> parse_count(std::string_view text);
// Of a variable that is there. Throws comm_error naming it.
int read_count(const Environment& env, const char* name, int min, int max);
Error bad_value(const char* name, const std::string& value, const std::string& expected);

// Fills in endpoint, job id and restart count of a context whose ranks are known.
void read_endpoint(const Environment& env, const DistConfig& config, LaunchContext* context);
void read_job(const Environment& env, LaunchContext* context);

}  // namespace heddle::launch_values
