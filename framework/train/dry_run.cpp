#include "framework/train/dry_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "framework/comm/host_communicator.h"
#include "framework/comm/nccl/nccl_communicator.h"
#include "framework/config/check.h"
#include "framework/config/dump.h"
#include "framework/core/parallel_for.h"
#include "framework/model/gpt.h"
#include "framework/optim/optimizer.h"

namespace heddle {
namespace {

double mib(size_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

std::string windows_text(const ModelSpec& spec) {
  std::string text;
  for (int64_t i = 0; i < spec.n_layer; ++i) {
    const int64_t w = spec.windows[static_cast<size_t>(i)];
    text += fmt::format("  layer {}: window_left {}\n", i, w < 0 ? "unlimited" : std::to_string(w));
  }
  return text;
}

std::string params_text(const ModelSpec& spec) {
  const ParamCounts n = count_params(ParamLayout(spec));
  return fmt::format(
      "  {:>13} total\n  {:>13} wte\n  {:>13} value embeddings\n  {:>13} lm_head\n"
      "  {:>13} block matrices\n  {:>13} lambdas and gates\n",
      n.total, n.wte, n.value_embeds, n.lm_head, n.transformer_matrices, n.scalars);
}

std::string memory_text(const Run& run, const Ownership& ownership) {
  std::string text;
  size_t total = 0;
  for (const MemoryItem& item : training_memory(run, ownership, run.comm->rank())) {
    text += fmt::format("  {:>10.1f} MiB {}\n", mib(item.bytes), item.kind);
    total += item.bytes;
  }
  return text + fmt::format("  {:>10.1f} MiB together\n", mib(total));
}

std::string communication_text(const Run& run, const Ownership& ownership) {
  const ShardOptions shard = shard_options(run.config, run.comm->world_size());
  return fmt::format("  {} bytes handed to other ranks a step, in {} buckets (dist.shard {})\n",
                     step_bytes(shard, ownership, run.comm->rank()), ownership.buckets().size(),
                     run.config.dist.shard);
}

std::string batch_text(const Run& run) {
  const auto& b = run.batch;
  return fmt::format(
      "  {} tokens a step = {} sequences of {} over {} ranks; this rank: {} in {} micro-steps of "
      "at most {}\n  {} steps, {:.3g} tokens, {:.3g} FLOP\n",
      b.global_sequences * run.spec.sequence_len, b.global_sequences, run.spec.sequence_len,
      run.comm->world_size(), b.count, b.micro_steps(), b.micro_batch,
      run.config.train.num_iterations,
      static_cast<double>(run.config.train.num_iterations * b.global_sequences *
                          run.spec.sequence_len),
      flops_per_token(run.spec) * static_cast<double>(run.config.train.num_iterations *
                                                      b.global_sequences * run.spec.sequence_len));
}

}  // namespace

std::vector<MemoryItem> training_memory(const Run& run, const Ownership& ownership, int rank) {
  const int world_size = run.comm->world_size();
  const size_t workspace = attention_workspace_bytes(
      run.spec, *run.attention, run.batch.micro_batch, run.spec.sequence_len, true);
  const ShardOptions shard = shard_options(run.config, world_size);
  const OptimPlan optim = plan_optimizer(run.config.optim, ownership, shard.level, rank,
                                         run.config.train.total_batch_size);
  std::vector<MemoryItem> items;
  for (const MemoryItem& item :
       plan_memory(run.spec, run.batch.micro_batch, run.spec.sequence_len, true, workspace)) {
    if (item.kind != "gradients") {
      items.push_back(item);
      continue;
    }
    for (const MemoryItem& g : plan_gradient_memory(shard, ownership, rank)) items.push_back(g);
  }
  items.push_back({"optimizer state", static_cast<size_t>(optim.state_bytes())});
  items.push_back(
      {"optimizer scratch", static_cast<size_t>(optim.scratch_bytes(run.device->ops().workers()))});
  if (world_size > 1) {
    const bool nccl = run.comm->backend() == "nccl";
    items.push_back({"communication", static_cast<size_t>(
                                          nccl ? kNcclScratchBytes : MessageLimits{}.scratch_bytes)});
  }
  return items;
}

std::string describe_run(const Run& run) {
  const Ownership ownership = make_ownership(run.config, run.spec, run.comm->world_size());
  std::string text = dump_config(run.config);
  text += "\nranks\n  " + run.comm->description() + "\n  " + run.launch.description() +
          fmt::format("\n  {}, {} threads a rank\n", run.device->description(), num_threads());
  text += "\ndata\n  " + run.dataset->describe() + "\n";
  text += "\nwindows\n" + windows_text(run.spec);
  text += "\nparameters\n" + params_text(run.spec);
  text += fmt::format("\nFLOPs per token: {:.0f}\n", flops_per_token(run.spec));
  text += "\nbatch\n" + batch_text(run);
  text += "\nmemory of a rank\n" + memory_text(run, ownership);
  text += "\ncommunication of a rank\n" + communication_text(run, ownership);
  text += "\nattention\n" + run.attention->explain();
  for (const std::string& warning : config_warnings(run.config)) text += "\nwarning: " + warning;
  return text + "\n";
}

}  // namespace heddle
