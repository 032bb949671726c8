// heddle plugin list, and the hidden plugin-probe.
#include <memory>
#include <string>
#include <vector>

#include "framework/cli/commands.h"
#include "framework/cli/plugin_bench.h"
#include "framework/cli/plugin_check.h"
#include "framework/cli/plugin_commands.h"
#include "framework/cli/plugin_new.h"
#include "framework/cli/plugin_why.h"

namespace heddle {
namespace {

void add_list(CLI::App& plugin, int& exit_code) {
  struct Options {
    AttentionConfig attention;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* list = plugin.add_subcommand("list", "Show what was found, and what was refused and why");
  list->add_option("--plugin-path", options->attention.plugin_path,
                   "folders or .so files to search first, as attention.plugin_path");
  list->add_flag("--json", options->json, "machine-readable output");
  list->callback([options, &exit_code] {
    exit_code = run_plugin_list(options->attention, options->json);
  });
}

}  // namespace

void add_plugin_command(CLI::App& app, int& exit_code) {
  CLI::App* plugin = app.add_subcommand("plugin", "Attention plugins");
  plugin->require_subcommand(1);
  add_list(*plugin, exit_code);
  add_check(*plugin, exit_code);
  add_bench(*plugin, exit_code);
  add_why(*plugin, exit_code);
  add_new(*plugin, exit_code);

  auto path = std::make_shared<std::string>();
  CLI::App* probe = app.add_subcommand("plugin-probe")->group("");
  probe->add_option("path", *path)->required();
  probe->callback([path, &exit_code] { exit_code = run_plugin_probe(*path); });
}

}  // namespace heddle
