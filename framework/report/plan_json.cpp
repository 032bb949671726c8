#include "framework/report/plan_text.h"

namespace heddle {
namespace {

json::object time_object(const StepTime& t) {
  return {{"forward", t.forward},
          {"backward", t.backward},
          {"optimizer", t.optimizer},
          {"reduce", t.reduce},
          {"reduce_exposed", t.reduce_exposed},
          {"gather", t.gather},
          {"gather_exposed", t.gather_exposed},
          {"step", t.total()},
          {"hidden_share", t.hidden_share()}};
}

json::object level_object(const RunPlan& plan, const LevelPlan& l) {
  json::object memory;
  for (const MemoryItem& item : l.memory) memory[item.kind] = item.bytes;
  return {{"memory", std::move(memory)},    {"memory_total", l.memory_bytes()},
          {"fits", plan.fits(l)},           {"sent_bytes", l.sent_bytes},
          {"seconds", time_object(l.time)}, {"tokens_per_second", plan.tokens() / l.time.total()},
          {"efficiency", l.efficiency}};
}

json::object levels_object(const RunPlan& plan) {
  json::object levels;
  for (const LevelPlan& l : plan.levels) levels[shard_name(l.level)] = level_object(plan, l);
  return levels;
}

json::object link_object(const Link& link) {
  return {{"bytes_per_s", link.bytes_per_s}, {"latency_s", link.latency_s}};
}

json::object device_object(const DeviceSpec& d) {
  return {{"name", d.name},
          {"source", d.source},
          {"peak_flops", d.peak_flops},
          {"model_share", d.model_share},
          {"thread_share", d.thread_share},
          {"optimizer_share", d.optimizer_share},
          {"memory_bytes", d.memory_bytes},
          {"memory_bytes_per_s", d.memory_bytes_per_s},
          {"compute_bytes", d.compute_bytes},
          {"exchange_bytes", d.exchange_bytes},
          {"ring", d.ring},
          {"overlap", d.overlap},
          {"local", link_object(d.local)},
          {"remote", link_object(d.remote)}};
}

}  // namespace

json::object plan_json(const PlanRequest& request, const RunPlan& plan, const PlanNotes& notes) {
  const ParamCounts& n = plan.params;
  json::object out{{"parameters",
                    {{"total", n.total},
                     {"wte", n.wte},
                     {"value_embeds", n.value_embeds},
                     {"lm_head", n.lm_head},
                     {"transformer_matrices", n.transformer_matrices},
                     {"scalars", n.scalars}}},
                   {"flops_per_token", plan.flops_per_token},
                   {"tokens_per_step", plan.tokens()},
                   {"micro_batch", plan.micro_batch},
                   {"micro_steps", plan.micro_steps},
                   {"nodes", request.topology.hosts},
                   {"ranks_per_node", request.topology.ranks_per_host},
                   {"threads", plan.threads},
                   {"rank_memory", plan.rank_memory},
                   {"device", device_object(request.device)},
                   {"shard", shard_name(notes.level)},
                   {"levels", levels_object(plan)}};
  if (!notes.advice.empty()) out["advice"] = notes.advice;
  if (notes.measured_seconds > 0) out["measured_seconds"] = notes.measured_seconds;
  return out;
}

json::array scaling_json(const std::vector<ScalingRow>& rows) {
  json::array out;
  for (const ScalingRow& r : rows) {
    out.push_back(json::object{{"nodes", r.topology.hosts},
                               {"ranks_per_node", r.topology.ranks_per_host},
                               {"levels", levels_object(r.plan)}});
  }
  return out;
}

}  // namespace heddle
