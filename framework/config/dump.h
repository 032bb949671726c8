// Config -> YAML with every key, as --dry-run shows it and runs/<name>/config.yaml keeps it.
#pragma once

#include <string>

#include "framework/config/config.h"

namespace heddle {

// parse_config(dump_config(c)) == c for every c that passes check_config(). `auto` stays `auto`.
std::string dump_config(const Config& config);

}  // namespace heddle
