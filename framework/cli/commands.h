// Each function adds one subcommand. Its callback does the work and sets exit_code.
#pragma once

#include <CLI/CLI.hpp>

namespace heddle {

void add_train_command(CLI::App& app, int& exit_code);
void add_eval_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, int& exit_code);
void add_tokenize_command(CLI::App& app, int& exit_code);
void add_launch_command(CLI::App& app, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, int& exit_code);
// plugin list, and the hidden plugin-probe that probing starts in a fresh process
void add_plugin_command(CLI::App& app, int& exit_code);

}  // namespace heddle
