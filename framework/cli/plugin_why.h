// `heddle plugin why run.yaml`: which backend each kind of layer gets, and why no other.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "framework/config/config.h"

namespace heddle {

struct WhyAnswer {
  std::string text;
  bool every_kind_served = true;
};

// The choice for the layers of a run with its batch and threads. Opens no data, starts no training.
WhyAnswer explain_choice(const Config& config);

// Adds the subcommand. Exit code 5 when a kind of layer has no backend.
void add_why(CLI::App& plugin, int& exit_code);

}  // namespace heddle
