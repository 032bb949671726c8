// `heddle plugin bench`: how fast every backend is, beside the machine's limits.
#pragma once

#include <CLI/CLI.hpp>

namespace heddle {

// Adds `bench`, and the hidden `bench-case` that measures in a fresh process.
void add_bench(CLI::App& plugin, int& exit_code);

}  // namespace heddle
