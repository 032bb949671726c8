#include "framework/report/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "framework/attention/attention.h"
#include "framework/comm/host_communicator.h"
#include "framework/comm/nccl/nccl_communicator.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/data/batch_plan.h"
#include "framework/model/kv_cache.h"
#include "framework/optim/ownership.h"
#include "framework/optim/plan.h"
#include "framework/optim/sharded_step.h"

namespace heddle {
namespace {

// The ranks of a run and what each of them does at a level.
struct Division {
  Ownership ownership;
  ShardOptions options;
  std::vector<OptimPlan> ranks;
};

Division divide(const PlanRequest& r, const RunPlan& plan, ShardLevel level) {
  const int world = static_cast<int>(r.topology.ranks());
  Division d{make_ownership(r.config, plan.spec, world), {}, {}};
  d.options.level = world == 1 ? ShardLevel::kNone : level;
  d.options.reproducible = r.config.train.reproducible && d.options.level != ShardLevel::kGradients;
  d.options.micro_steps = plan.micro_steps;
  // Without sharding all ranks do the same.
  const int different = d.options.level == ShardLevel::kNone ? 1 : world;
  for (int rank = 0; rank < different; ++rank) {
    d.ranks.push_back(plan_optimizer(r.config.optim, d.ownership, d.options.level, rank,
                                     r.config.train.total_batch_size));
  }
  return d;
}

template <class Value>
auto most(const Division& d, Value&& value) {
  auto result = value(d.ranks.front());
  for (const OptimPlan& p : d.ranks) result = std::max(result, value(p));
  return result;
}

double muon_flops(const OptimPlan& p) {
  double flops = 0;
  for (const MuonTask& task : p.muon) flops += 2 * task.cost();  // cost() counts multiply-adds
  return flops;
}

double adamw_elements(const OptimPlan& p) {
  double elements = 0;
  for (const AdamWTask& task : p.adamw) elements += static_cast<double>(task.count);
  return elements;
}

int64_t threads_of_rank(const PlanRequest& r) {
  if (r.config.train.threads > 0) return r.config.train.threads;
  return std::max<int64_t>(1, r.device.processors / r.topology.ranks_per_host);
}

double rank_memory(const PlanRequest& r) {
  if (!r.device.shared_host) return r.device.memory_bytes - r.device.reserved_bytes;
  return r.device.memory_bytes / static_cast<double>(r.topology.ranks_per_host);
}

RunPlan plan_shape(const PlanRequest& r) {
  const TrainConfig& train = r.config.train;
  RunPlan plan;
  plan.spec = resolve_model(r.config.model, r.vocab_size);
  const ParamLayout layout(plan.spec);
  plan.params = count_params(layout);
  plan.flops_per_token = flops_per_token(plan.spec);
  const BatchPlan batch =
      plan_batch(train, plan.spec.sequence_len, 0, static_cast<int>(r.topology.ranks()));
  plan.global_sequences = batch.global_sequences;
  if (plan.global_sequences < r.topology.ranks()) {
    throw config_error(
        fmt::format("train.total_batch_size {} is {} sequences of {} tokens, fewer than the {} "
                    "ranks",
                    train.total_batch_size, plan.global_sequences, plan.spec.sequence_len,
                    r.topology.ranks()),
        fmt::format("raise train.total_batch_size to {} or plan for fewer ranks",
                    r.topology.ranks() * plan.spec.sequence_len));
  }
  plan.rank_sequences = batch.count;
  plan.micro_batch = batch.micro_batch;
  plan.micro_steps = batch.micro_steps();
  plan.threads = threads_of_rank(r);
  plan.rank_memory = rank_memory(r);
  return plan;
}

StepLoad load_of(const PlanRequest& r, const RunPlan& plan, const Division& d) {
  const ParamLayout& layout = d.ownership.layout();
  StepLoad load;
  load.segments = model_segments(plan.spec, layout);
  load.buckets = exchange_buckets(d.ownership);
  load.tokens = static_cast<double>(plan.rank_sequences * plan.spec.sequence_len);
  load.micro_steps = plan.micro_steps;
  load.muon_flops = most(d, muon_flops);
  load.adamw_elements = most(d, adamw_elements);
  load.norm_elements =
      static_cast<double>(layout.total()) / static_cast<double>(d.ownership.world_size());
  load.level = d.options.level;
  load.overlap = r.overlap;
  load.threads = plan.threads;
  return load;
}

double sent_bytes_of(const PlanRequest& r, const Division& d) {
  int64_t bytes = 0;
  for (int rank = 0; rank < d.ownership.world_size(); ++rank) {
    bytes = std::max(bytes, step_bytes(d.options, d.ownership, rank));
  }
  return static_cast<double>(bytes) * static_cast<double>(r.device.exchange_bytes) / sizeof(float);
}

std::vector<MemoryItem> largest_gradients(const Division& d) {
  std::vector<MemoryItem> largest = plan_gradient_memory(d.options, d.ownership, 0);
  for (int rank = 1; rank < d.ownership.world_size(); ++rank) {
    const std::vector<MemoryItem> items = plan_gradient_memory(d.options, d.ownership, rank);
    for (size_t i = 0; i < items.size(); ++i) {
      largest[i].bytes = std::max(largest[i].bytes, items[i].bytes);
    }
  }
  return largest;
}

std::vector<MemoryItem> memory_of(const PlanRequest& r, const RunPlan& plan, const Division& d) {
  const auto compute = static_cast<size_t>(r.device.compute_bytes);
  const size_t workspace = r.attention_workspace(plan.spec, plan.micro_batch);
  std::vector<MemoryItem> items;
  for (const MemoryItem& item :
       plan_memory(plan.spec, plan.micro_batch, plan.spec.sequence_len, true, workspace)) {
    if (item.kind == "gradients") {
      for (const MemoryItem& g : largest_gradients(d)) items.push_back(g);
      continue;
    }
    // All is fp32 but for a copy of the weights (docs/adr/0006).
    items.push_back(item);
    if (item.kind == "weights" && compute != sizeof(float)) {
      items.push_back({"weights for products", item.bytes / sizeof(float) * compute});
    }
  }
  const int workers = r.device.shared_host ? static_cast<int>(plan.threads) : 1;
  const auto state = most(d, [](const OptimPlan& p) { return p.state_bytes(); });
  const auto scratch = most(d, [&](const OptimPlan& p) { return p.scratch_bytes(workers); });
  items.push_back({"optimizer state", static_cast<size_t>(state)});
  items.push_back({"optimizer scratch", static_cast<size_t>(scratch)});
  if (r.config.train.sample_tokens > 0) {
    const int64_t capacity = 1 + r.config.train.sample_tokens;
    items.push_back({"key/value cache", KvCache::planned_bytes(plan.spec, 1, capacity)});
  }
  if (r.topology.ranks() > 1) {
    items.push_back({"communication", static_cast<size_t>(r.device.shared_host
                                                              ? MessageLimits{}.scratch_bytes
                                                              : kNcclScratchBytes)});
  }
  return items;
}

// Tokens/s of the same devices, each alone with its part of the batch and nothing to exchange: one
// GPU, or one rank that has a host for itself. The optimizer is not sharded there.
double lone_step_seconds(const PlanRequest& r, const RunPlan& plan) {
  PlanRequest lone = r;
  lone.topology = {1, 1};
  RunPlan shape = plan;
  const int64_t units = r.device.shared_host ? r.topology.hosts : r.topology.ranks();
  shape.rank_sequences = (plan.global_sequences + units - 1) / units;
  shape.threads = threads_of_rank(lone);
  return predict_step(lone.device, lone.topology,
                      load_of(lone, shape, divide(lone, shape, ShardLevel::kNone)))
      .total();
}

}  // namespace

double LevelPlan::memory_bytes() const {
  double bytes = 0;
  for (const MemoryItem& item : memory) bytes += static_cast<double>(item.bytes);
  return bytes;
}

RunPlan make_plan(const PlanRequest& request) {
  RunPlan plan = plan_shape(request);
  const double lone = lone_step_seconds(request, plan);
  for (const ShardLevel level : kShardLevels) {
    const Division division = divide(request, plan, level);
    LevelPlan l;
    l.level = level;
    l.memory = memory_of(request, plan, division);
    l.sent_bytes = sent_bytes_of(request, division);
    l.time = predict_step(request.device, request.topology, load_of(request, plan, division));
    l.efficiency = lone / l.time.total();
    plan.levels.push_back(std::move(l));
  }
  return plan;
}

std::function<size_t(const ModelSpec&, int64_t)> attention_workspace_of(
    const PlanRequest& request) {
  if (!request.device.shared_host) {
    return [](const ModelSpec& spec, int64_t micro_batch) {
      const int64_t rows = micro_batch * spec.sequence_len;
      return static_cast<size_t>(rows * (spec.n_embd + spec.n_head)) * sizeof(float);
    };
  }
  set_num_threads(static_cast<int>(threads_of_rank(request)));
  const std::shared_ptr<Device> cpu = make_cpu_device();
  const std::shared_ptr<AttentionHost> host = AttentionHost::create(request.config.attention, *cpu);
  return [cpu, host](const ModelSpec& spec, int64_t micro_batch) {
    host->select(attention_kinds(spec), micro_batch, spec.sequence_len, attention_layout(spec));
    return attention_workspace_bytes(spec, *host, micro_batch, spec.sequence_len, true);
  };
}

}  // namespace heddle
