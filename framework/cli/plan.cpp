// heddle plan run.yaml [--nodes N --gpus M | --ranks N] [--device D] [section.key=value ...]
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "framework/cli/commands.h"
#include "framework/config/check.h"
#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/data/dataset.h"
#include "framework/report/advice.h"
#include "framework/report/calibration.h"
#include "framework/report/plan_text.h"

namespace heddle {
namespace {

struct PlanOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<int64_t> nodes;
  int64_t gpus = 0;
  int64_t ranks = 0;
  std::string device;
  std::vector<std::string> values;
  std::string calibrate;
  bool weak = false, no_overlap = false, json = false;
};

Topology topology_of(const PlanOptions& o, const PlanConfig& plan) {
  if (o.ranks > 0) return {1, o.ranks};
  return {o.nodes.empty() ? plan.nodes : o.nodes.front(),
          o.gpus > 0 ? o.gpus : plan.ranks_per_node};
}

PlanRequest make_request(const PlanOptions& o, const Config& config) {
  PlanRequest r;
  r.config = config;
  r.topology = topology_of(o, config.plan);
  r.overlap = !o.no_overlap;
  // Data need not lie where a run is planned.
  if (!config.model.vocab_size) r.vocab_size = data_vocabulary(config.data).vocab_size.value_or(0);
  r.device = find_device(o.device.empty() ? config.plan.device : o.device);
  if (config.train.peak_flops) {
    const auto sharing = r.device.shared_host ? r.topology.ranks_per_host : int64_t{1};
    r.device.peak_flops = *config.train.peak_flops * static_cast<double>(sharing);
  }
  r.attention_workspace = attention_workspace_of(r);
  return r;
}

// The measured time means something for this plan when the same run was measured.
double same_run_seconds(const MeasuredRun& run, const PlanRequest& r) {
  const bool same = run.config.model == r.config.model &&
                    run.config.dist.shard == r.config.dist.shard &&
                    run.topology.hosts == r.topology.hosts &&
                    run.topology.ranks_per_host == r.topology.ranks_per_host &&
                    run.config.train.total_batch_size == r.config.train.total_batch_size;
  return same ? run.step_seconds : 0;
}

void print_scaling(const PlanOptions& o, PlanRequest r) {
  const int64_t first_batch = r.config.train.total_batch_size;
  const int64_t first_nodes = o.nodes.front();
  std::vector<ScalingRow> rows;
  for (const int64_t nodes : o.nodes) {
    r.topology.hosts = nodes;
    if (o.weak) {
      r.config.train.total_batch_size = first_batch / r.config.model.sequence_len * nodes /
                                        first_nodes * r.config.model.sequence_len;
    }
    rows.push_back({r.topology, make_plan(r)});
  }
  if (o.json) {
    fmt::print("{}", json::pretty(scaling_json(rows)));
  } else {
    fmt::print("{}", scaling_text(rows));
  }
}

void run_plan(const PlanOptions& o) {
  const Config config = load_config(o.file, o.overrides);
  PlanRequest r = make_request(o, config);
  PlanNotes notes;
  notes.level = parse_shard_level(config.dist.shard);
  if (!o.calibrate.empty()) {
    const MeasuredRun measured = read_measured_run(o.calibrate);
    r.device = calibrate(r.device, measured, r);
    notes.measured_seconds = same_run_seconds(measured, r);
  }
  for (const std::string& value : o.values) set_device_value(r.device, value);
  if (o.nodes.size() > 1) return print_scaling(o, std::move(r));
  const RunPlan plan = make_plan(r);
  notes.advice = advise(r, plan, notes.level).value_or("");
  fmt::print("{}", o.json ? json::pretty(plan_json(r, plan, notes)) : plan_text(r, plan, notes));
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Memory, communication and step time of a run, predicted without allocating");
  command->add_option("file", o->file, "configuration, e.g. configs/runs/speedrun_2x8.yaml")
      ->required();
  command->add_option("overrides", o->overrides, "section.key=value, as in heddle train");
  command->add_option("--nodes", o->nodes, "hosts; several, as 1,2,4, give a table (plan.nodes)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20));
  auto* gpus = command->add_option("--gpus", o->gpus, "ranks on each host (plan.ranks_per_node)")
                   ->check(CLI::Range(1, 65536));
  command->add_option("--ranks", o->ranks, "ranks on one host")
      ->check(CLI::Range(1, 65536))
      ->excludes(gpus)
      ->excludes("--nodes");
  command->add_option("--device", o->device, "cpu, a100, h100, h200 (plan.device)");
  command
      ->add_option("--set", o->values,
                   "another figure for the device: KEY=VALUE, e.g. remote_bytes_per_s=12.5e9")
      ->allow_extra_args(false);
  command->add_option("--calibrate", o->calibrate,
                      "metrics.jsonl of a measured run, config.yaml beside it: take rates from it");
  command->add_flag("--weak", o->weak,
                    "with several --nodes: train.total_batch_size is the first's and grows along");
  command->add_flag("--no-overlap", o->no_overlap, "collectives wait for all of backward");
  command->add_flag("--json", o->json, "figures for programs: bytes and seconds");
  command->allow_extras();  // --section.key=value
  command->callback([command, o, &exit_code] {
    for (const std::string& extra : command->remaining()) {
      if (extra.starts_with("-") && extra.find('=') == std::string::npos) {
        throw CLI::ExtrasError("plan", {extra});
      }
      o->overrides.push_back(extra);
    }
    run_plan(*o);
    exit_code = 0;
  });
}

}  // namespace heddle
