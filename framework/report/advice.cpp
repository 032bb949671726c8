#include "framework/report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace heddle {
namespace {

constexpr int64_t kMostHosts = 1024;

double gib(double bytes) {
  return bytes / (1024.0 * 1024 * 1024);
}

struct Change {
  ShardLevel level;
  int64_t micro_batch;
  double seconds;
};

// Every level and every halving of the micro-batch that fits, in order of predicted time.
std::vector<Change> fitting(PlanRequest request, int64_t micro_batch) {
  std::vector<Change> changes;
  for (int64_t b = micro_batch; b >= 1; b /= 2) {
    request.config.train.device_batch_size = b;
    const RunPlan plan = make_plan(request);
    for (const LevelPlan& l : plan.levels) {
      if (plan.fits(l)) changes.push_back({l.level, b, l.time.total()});
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.seconds < b.seconds; });
  return changes;
}

std::string keys(const Change& c, ShardLevel level, int64_t micro_batch) {
  std::string text;
  if (c.level != level) text = fmt::format("dist.shard: {}", shard_name(c.level));
  if (c.micro_batch != micro_batch) {
    text +=
        fmt::format("{}train.device_batch_size: {}", text.empty() ? "" : " and ", c.micro_batch);
  }
  return text;
}

// With every rank doing the least it can, how many hosts hold the model?
std::string more_hosts(PlanRequest request, const RunPlan& plan) {
  request.config.train.device_batch_size = 1;
  const int64_t most = plan.global_sequences / request.topology.ranks_per_host;
  for (int64_t hosts = request.topology.hosts * 2; hosts <= std::min(most, kMostHosts);
       hosts *= 2) {
    request.topology.hosts = hosts;
    const RunPlan larger = make_plan(request);
    const LevelPlan& l = larger.level(ShardLevel::kGradients);
    if (larger.fits(l)) {
      return fmt::format(
          "use {} hosts of {} ranks with dist.shard: gradients and train.device_batch_size: 1",
          hosts, request.topology.ranks_per_host);
    }
  }
  return {};
}

std::string smaller_model(const PlanRequest& request) {
  PlanRequest least = request;
  least.config.train.device_batch_size = 1;
  const RunPlan plan = make_plan(least);
  const LevelPlan& l = plan.level(ShardLevel::kGradients);
  const auto largest =
      std::max_element(l.memory.begin(), l.memory.end(),
                       [](const MemoryItem& a, const MemoryItem& b) { return a.bytes < b.bytes; });
  const bool rows =
      largest->kind == "activations" || largest->kind == "workspace" || largest->kind == "logits";
  return fmt::format(
      "even dist.shard: gradients with train.device_batch_size: 1 needs {:.1f} GiB, {:.1f} of them "
      "{}: lower {}",
      gib(l.memory_bytes()), gib(static_cast<double>(largest->bytes)), largest->kind,
      rows ? "model.sequence_len" : "model.n_layer or model.n_embd");
}

}  // namespace

std::optional<std::string> advise(const PlanRequest& request, const RunPlan& plan,
                                  ShardLevel level) {
  const LevelPlan& now = plan.level(level);
  if (plan.fits(now)) return std::nullopt;
  std::string text = fmt::format(
      "A rank needs {:.1f} GiB and has {:.1f}: ", gib(now.memory_bytes()), gib(plan.rank_memory));
  const std::vector<Change> changes = fitting(request, plan.micro_batch);
  if (!changes.empty()) {
    return text + "set " + keys(changes.front(), level, plan.micro_batch);
  }
  const std::string hosts = more_hosts(request, plan);
  return text + (hosts.empty() ? smaller_model(request) : hosts);
}

}  // namespace heddle
