// `heddle plugin check NAME|PATH`: the conformance suite on one plugin.
#pragma once

#include <CLI/CLI.hpp>

namespace heddle {

// Adds `check`, and the hidden `check-rule` that runs one rule in a fresh process. Exit code 0 when
// everything passed, 5 when something failed or nothing ran.
void add_check(CLI::App& plugin, int& exit_code);

}  // namespace heddle
