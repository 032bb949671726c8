// heddle launch -n N -- COMMAND...  |  --show  |  --collect DIR
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/cli/commands.h"
#include "framework/cli/launch_job.h"
#include "framework/comm/launch_context.h"
#include "framework/core/error.h"
#include "framework/train/failure.h"

namespace heddle {
namespace {

constexpr const char* kExamples = R"(
Examples:
  heddle launch -n 4 -- train configs/runs/recall_cpu.yaml
  heddle launch -n 2 -- train run.yaml train.resume=auto --dry-run
  mpirun -n 2 heddle launch --show         what each process takes from its launcher
  heddle launch --collect collected/       merge failure records copied from several hosts

Signals: SIGINT, SIGTERM and SIGUSR1 reach all ranks, which save and stop. When a rank fails the
others are ended, and the exit code is that of the rank that failed first (6 after a signal).)";

struct LaunchOptions {
  JobOptions job;
  bool show = false;
  std::string collect;
};

int show() {
  std::fputs(resolve_launch(process_environment()).table().c_str(), stdout);
  return 0;
}

int collect(const std::string& folder) {
  const FailureSummary summary = collect_failures(folder);
  std::printf("%s\n", summary.text().c_str());
  std::printf("wrote %s\n", (folder + "/failure.json").c_str());
  return 0;
}

// A heddle subcommand, or a program when it is written as a path.
std::vector<std::string> program(std::vector<std::string> command) {
  if (command.empty()) {
    throw CLI::RequiredError("launch: a command behind --, such as: -- train run.yaml");
  }
  if (command.front().find('/') == std::string::npos) {
    command.insert(command.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  }
  return command;
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand(
      "launch", "Start the ranks of a job on this machine, or look into how a job was started");
  command->add_option("-n,--ranks", options->job.ranks, "processes to start")
      ->check(CLI::Range(1, 4096));
  command->add_option("--port", options->job.port, "port of rank 0's store; left out: a free one")
      ->check(CLI::Range(1, 65535));
  command
      ->add_option("--grace", options->job.grace_seconds,
                   "seconds that the other ranks have after the first failure")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option(
      "command", options->job.command,
      "behind --: a heddle subcommand, or the path of a program, and its arguments");
  command->add_flag("--show", options->show, "print what this process takes from its launcher");
  command
      ->add_option("--collect", options->collect,
                   "merge the failure-rank-N.json files below this folder into failure.json")
      ->check(CLI::ExistingDirectory);
  command->footer(kExamples);
  command->callback([options, &exit_code] {
    if (options->show) {
      exit_code = show();
    } else if (!options->collect.empty()) {
      exit_code = collect(options->collect);
    } else {
      options->job.command = program(options->job.command);
      exit_code = run_job(options->job);
    }
  });
}

}  // namespace heddle
