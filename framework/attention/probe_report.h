// A PluginReport as one line of JSON, from the probe process to its parent.
#pragma once

#include <string>

#include "framework/attention/probe.h"
#include "framework/core/json.h"

namespace heddle {

json::object report_object(const PluginReport& report);
std::string write_report(const PluginReport& report);
// Refuses what it cannot read: the plugin may have scribbled over the process.
PluginReport parse_report(const std::string& line);

}  // namespace heddle
