// docs/configuration.md, from the one list of fields.
#pragma once

#include <string>

namespace heddle {

std::string config_reference_markdown();

}  // namespace heddle
