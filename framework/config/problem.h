// What is wrong with a configuration: collected first, reported together.
#pragma once

#include <string>
#include <vector>

#include "framework/core/error.h"

namespace heddle::config_internal {

struct Problem {
  std::string text;    // "run.yaml:7: model.n_kv_heads: unknown key"
  std::string remedy;  // a sentence, may be empty
};

// Where a value came from, as the beginning of a message.
struct Source {
  std::string name;  // "run.yaml" or "command line"
  bool has_lines = true;

  // "run.yaml:7" or "command line".
  std::string at(int line) const { return has_lines ? name + ":" + std::to_string(line) : name; }
};

// One problem becomes the error's message and remedy; several become one line each.
Error to_error(const std::vector<Problem>& problems);

}  // namespace heddle::config_internal
