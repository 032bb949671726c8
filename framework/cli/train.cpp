// heddle train run.yaml [section.key=value ...] [--dry-run]
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "framework/cli/commands.h"
#include "framework/cli/out_of_memory.h"
#include "framework/config/check.h"
#include "framework/config/load.h"
#include "framework/core/log.h"
#include "framework/train/dry_run.h"
#include "framework/train/fault.h"
#include "framework/train/trainer.h"
#include "framework/train/watchdog.h"

namespace heddle {
namespace {

struct TrainOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool dry_run = false;
};

// What the user asked for, with all ranks; throws what goes wrong.
void train(const TrainOptions& options, const Config& config, const LaunchContext& launch,
           StopSignals& signals, Watchdog& watchdog, Run* run, std::optional<Trainer>* trainer) {
  open_run(config, launch, watchdog, run);
  const std::shared_ptr<Rendezvous> rendezvous = run->rendezvous;
  Communicator& comm = *run->comm;
  if (options.dry_run) {
    if (run->chief()) std::fputs(describe_run(*run).c_str(), stdout);
    comm.barrier();
  } else {
    if (run->chief()) {
      for (const std::string& warning : config_warnings(config)) log::warn("{}", warning);
      log::info("{}; {}; {}", comm.description(), run->device->description(),
                run->dataset->describe());
      log::info("{}", run->attention->explain());
    }
    trainer->emplace(std::move(*run), signals, watchdog);
    (*trainer)->train();
  }
  watchdog.leave();
  if (rendezvous) rendezvous->leave();
  comm.finish();
}

void run_train(const TrainOptions& options) {
  StopSignals signals;  // first: the threads that others start inherit what it blocks
  const Config config = load_config(options.file, options.overrides);
  const LaunchContext launch = resolve_launch(process_environment(), config.dist);
  arm_faults(launch.rank);
  // What the ranks share outlives an error until the watchdog has told the others about it.
  Run run;
  Watchdog watchdog(config.dist.timeout_s, launch, signals);
  std::optional<Trainer> trainer;
  try {
    train(options, config, launch, signals, watchdog, &run, &trainer);
  } catch (const Error& e) {
    if (out_of_memory(e)) std::fputs(memory_plan(config, launch).c_str(), stderr);
    watchdog.fail(e.what(), e.code(),
                  e.code() == ExitCode::kCommunication ? Watchdog::Cause::kCollective
                                                       : Watchdog::Cause::kOwn);
    throw;
  } catch (const std::bad_alloc&) {
    watchdog.fail(
        "[memory] out of host memory. Lower train.device_batch_size or "
        "model.sequence_len",
        ExitCode::kCommunication);
    throw;
  } catch (const std::exception& e) {
    watchdog.fail(std::string("[internal] ") + e.what(), ExitCode::kCommunication);
    throw;
  }
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a YAML file describes");
  command->add_option("file", options->file, "configuration, e.g. configs/runs/recall_cpu.yaml")
      ->required();
  command->add_option("overrides", options->overrides,
                      "section.key=value, e.g. model.n_kv_head=2; see docs/configuration.md");
  command->add_flag("--dry-run", options->dry_run,
                    "print the resolved configuration, memory and attention choice, then stop");
  command->allow_extras();  // --section.key=value
  command->callback([command, options, &exit_code] {
    for (const std::string& extra : command->remaining()) {
      if (extra.starts_with("-") && extra.find('=') == std::string::npos) {
        throw CLI::ExtrasError("train", {extra});
      }
      options->overrides.push_back(extra);
    }
    run_train(*options);
    exit_code = 0;
  });
}

}  // namespace heddle
