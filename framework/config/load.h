// YAML text and command-line overrides -> Config, strictly: what cannot be read in exactly one way
// is an error with file, line, full key, the value found, what is accepted and the likely remedy.
#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"

namespace heddle {

// Reads the file at `path` and applies `overrides` in order, each "section.key=value" or
// "--section.key=value" with the value as YAML ("model.window_pattern=[64]"); an empty value is
// the empty text. A missing or empty section keeps its defaults. All problems of file and command
// line come in one config error; check_config() is part of it.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});

// The same from text. `file_name` stands in messages.
Config parse_config(const std::string& text, const std::string& file_name,
                    const std::vector<std::string>& overrides = {});

}  // namespace heddle
