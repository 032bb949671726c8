#include "framework/report/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "framework/attention/attention.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/data/dataset.h"
#include "framework/model/kv_cache.h"
#include "framework/optim/plan.h"

namespace heddle {
namespace {

constexpr double kBucketBytes = 25.0 * 1024 * 1024;

double bucket_bytes(const ParamLayout& layout) {
  return std::min(kBucketBytes, static_cast<double>(layout.total()) * sizeof(float));
}

// What a GPU holds before the model: context, library workspaces, NCCL's channels.
constexpr double kGpuReserve = 2.0 * 1024 * 1024 * 1024;

// The heaviest owner's part: state in elements, work in FLOPs and elements.
struct OwnedPart {
  double state_bytes = 0;
  double muon_flops = 0;
  double adamw_elements = 0;
};

OwnedPart owned_part(const OptimPlan& optim, int64_t owners) {
  OwnedPart part;
  double heaviest = 0;
  for (const MuonTask& task : optim.muon) {
    part.muon_flops += 2 * task.cost();  // cost() counts multiply-adds
    heaviest = std::max(heaviest, 2 * task.cost());
  }
  for (const AdamWTask& task : optim.adamw) {
    part.adamw_elements += static_cast<double>(task.param.size());
  }
  const auto n = static_cast<double>(owners);
  part.state_bytes = static_cast<double>(optim.state_bytes()) / n;
  part.muon_flops = std::max(part.muon_flops / n, heaviest);
  part.adamw_elements /= n;
  return part;
}

int64_t threads_of_rank(const PlanRequest& r) {
  if (r.config.train.threads > 0) return r.config.train.threads;
  return std::max<int64_t>(1, r.device.processors / r.topology.ranks_per_host);
}

double rank_memory(const PlanRequest& r) {
  if (!r.device.shared_host) return r.device.memory_bytes - kGpuReserve;
  return r.device.memory_bytes / static_cast<double>(r.topology.ranks_per_host);
}

RunPlan plan_shape(const PlanRequest& r) {
  const TrainConfig& train = r.config.train;
  RunPlan plan;
  plan.spec = resolve_model(r.config.model, r.vocab_size);
  const ParamLayout layout(plan.spec);
  plan.params = count_params(layout);
  plan.flops_per_token = flops_per_token(plan.spec);
  plan.global_sequences = train.total_batch_size / plan.spec.sequence_len;
  if (plan.global_sequences < r.topology.ranks()) {
    throw config_error(
        fmt::format("train.total_batch_size {} is {} sequences of {} tokens, fewer than the {} "
                    "ranks",
                    train.total_batch_size, plan.global_sequences, plan.spec.sequence_len,
                    r.topology.ranks()),
        fmt::format("raise train.total_batch_size to {} or plan for fewer ranks",
                    r.topology.ranks() * plan.spec.sequence_len));
  }
  plan.rank_sequences =
      rank_share(plan.global_sequences, 0, static_cast<int>(r.topology.ranks())).count;
  plan.micro_batch = std::min(train.device_batch_size, plan.rank_sequences);
  plan.micro_steps = (plan.rank_sequences + plan.micro_batch - 1) / plan.micro_batch;
  plan.threads = threads_of_rank(r);
  plan.rank_memory = rank_memory(r);
  return plan;
}

StepLoad load_of(const PlanRequest& r, const RunPlan& plan, const ParamLayout& layout,
                 const OptimPlan& optim, ShardLevel level) {
  const int64_t ranks = r.topology.ranks();
  const OwnedPart owned = owned_part(optim, level == ShardLevel::kNone ? 1 : ranks);
  StepLoad load;
  load.segments = model_segments(plan.spec, layout);
  load.exchange_elements = static_cast<double>(layout.total());
  load.tokens = static_cast<double>(plan.rank_sequences * plan.spec.sequence_len);
  load.micro_steps = plan.micro_steps;
  load.muon_flops = owned.muon_flops;
  load.adamw_elements = owned.adamw_elements;
  load.norm_elements = static_cast<double>(layout.total()) / static_cast<double>(ranks);
  load.level = level;
  load.bucket_bytes = bucket_bytes(layout);
  load.overlap = r.overlap;
  load.threads = plan.threads;
  return load;
}

std::vector<MemoryItem> memory_of(const PlanRequest& r, const RunPlan& plan, const OptimPlan& optim,
                                  ShardLevel level) {
  const int64_t compute = r.device.compute_bytes;
  const int64_t ranks = r.topology.ranks();
  const size_t workspace = r.attention_workspace(plan.spec, plan.micro_batch);
  std::vector<MemoryItem> items =
      plan_memory(plan.spec, plan.micro_batch, plan.spec.sequence_len, true, workspace);
  const size_t weights = items.front().bytes;
  const auto buckets = static_cast<size_t>(2 * bucket_bytes(ParamLayout(plan.spec)));
  for (MemoryItem& item : items) {
    // The plan counts fp32; only weights and gradients are kept in it where products read bf16.
    if (item.kind == "activations") item.bytes = item.bytes / sizeof(float) * compute;
    if (item.kind == "gradients" && level == ShardLevel::kGradients) {
      item.bytes = item.bytes / static_cast<size_t>(ranks) + buckets;
    }
  }
  if (compute != sizeof(float)) {
    items.insert(items.begin() + 1, {"weights for products", weights / sizeof(float) * compute});
  }
  const OwnedPart owned = owned_part(optim, level == ShardLevel::kNone ? 1 : ranks);
  items.push_back({"optimizer state", static_cast<size_t>(owned.state_bytes)});
  const int workers = r.device.shared_host ? static_cast<int>(plan.threads) : 1;
  items.push_back({"optimizer scratch", static_cast<size_t>(optim.scratch_bytes(workers))});
  if (r.config.train.sample_tokens > 0) {
    const int64_t capacity = 1 + r.config.train.sample_tokens;
    items.push_back({"key/value cache", KvCache::planned_bytes(plan.spec, 1, capacity)});
  }
  if (ranks > 1) items.push_back({"communication", buckets});
  return items;
}

// Tokens/s of the same devices, each alone with its part of the batch and nothing to exchange: one
// GPU, or one rank that has a host for itself. The optimizer is not sharded there.
double lone_step_seconds(const PlanRequest& r, const RunPlan& plan, const ParamLayout& layout,
                         const OptimPlan& optim) {
  PlanRequest lone = r;
  lone.topology = {1, 1};
  RunPlan shape = plan;
  const int64_t units = r.device.shared_host ? r.topology.hosts : r.topology.ranks();
  shape.rank_sequences = (plan.global_sequences + units - 1) / units;
  shape.threads = threads_of_rank(lone);
  return predict_step(lone.device, lone.topology,
                      load_of(lone, shape, layout, optim, ShardLevel::kNone))
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
  const ParamLayout layout(plan.spec);
  const OptimPlan optim =
      plan_optimizer(request.config.optim, layout, request.config.train.total_batch_size);
  const double lone = lone_step_seconds(request, plan, layout, optim);
  for (const ShardLevel level : kShardLevels) {
    const StepLoad load = load_of(request, plan, layout, optim, level);
    LevelPlan l;
    l.level = level;
    l.memory = memory_of(request, plan, optim, level);
    l.sent_bytes = step_sent_bytes(request.device, request.topology, load);
    l.time = predict_step(request.device, request.topology, load);
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
