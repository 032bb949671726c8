#include "framework/report/plan_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace heddle {
namespace {

double gib(double bytes) {
  return bytes / (1024.0 * 1024 * 1024);
}

constexpr const char* kShardNote = "\n* dist.shard of this configuration\n";

std::string time_text(double seconds) {
  if (seconds >= 10) return fmt::format("{:.1f} s", seconds);
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

template <class Cell>
std::string row(const RunPlan& plan, const std::string& name, Cell&& cell) {
  std::string text = fmt::format("  {:<22}", name);
  for (const LevelPlan& l : plan.levels) text += fmt::format(" {:>14}", cell(l));
  return text + "\n";
}

std::string header(const RunPlan& plan, const PlanNotes& notes, const std::string& title) {
  return fmt::format("\n{:<24}", title) + [&] {
    std::string text;
    for (const LevelPlan& l : plan.levels) {
      const std::string name =
          std::string(shard_name(l.level)) + (l.level == notes.level ? " *" : "");
      text += fmt::format(" {:>14}", name);
    }
    return text + "\n";
  }();
}

std::string model_text(const RunPlan& plan) {
  const ParamCounts& n = plan.params;
  return fmt::format(
      "model\n  {} parameters: {} wte, {} value embeddings, {} lm_head, {} block matrices, {} "
      "lambdas and gates\n  {:.4g} FLOPs a token (forward and backward)\n",
      n.total, n.wte, n.value_embeds, n.lm_head, n.transformer_matrices, n.scalars,
      plan.flops_per_token);
}

std::string machine_text(const PlanRequest& r, const RunPlan& plan) {
  const Topology& t = r.topology;
  std::string text = fmt::format("machine\n  {} ranks = {} hosts x {}, {}", t.ranks(), t.hosts,
                                 t.ranks_per_host, r.device.name);
  if (r.device.shared_host) text += fmt::format(", {} threads a rank", plan.threads);
  return text + fmt::format(
                    "\n  {}\n  a rank: {:.4g} TFLOP/s peak, of which {:.0f} % in the model and "
                    "{:.0f} % in Muon; {:.1f} GiB\n  links: {:.4g} GB/s and {:.3g} us inside a "
                    "host, {:.4g} GB/s a host and {:.3g} us between hosts, {}; {:.0f} % of a "
                    "transfer runs beside computation\n",
                    r.device.source, rank_peak_flops(r.device, t, plan.threads) / 1e12,
                    r.device.model_share * 100, r.device.optimizer_share * 100,
                    gib(plan.rank_memory), r.device.local.bytes_per_s / 1e9,
                    r.device.local.latency_s * 1e6, r.device.remote.bytes_per_s / 1e9,
                    r.device.remote.latency_s * 1e6, r.device.ring ? "rings" : "direct messages",
                    r.overlap ? r.device.overlap * 100 : 0.0);
}

std::string batch_text(const RunPlan& plan) {
  return fmt::format(
      "batch\n  {:.0f} tokens a step = {} sequences of {}; the largest rank has {} in {} "
      "micro-steps of at most {}\n",
      plan.tokens(), plan.global_sequences, plan.spec.sequence_len, plan.rank_sequences,
      plan.micro_steps, plan.micro_batch);
}

// Every kind that a level has, at about the place where it lists it.
std::vector<std::string> memory_kinds(const RunPlan& plan) {
  std::vector<std::string> kinds;
  for (const LevelPlan& l : plan.levels) {
    for (size_t i = 0; i < l.memory.size(); ++i) {
      if (std::find(kinds.begin(), kinds.end(), l.memory[i].kind) != kinds.end()) continue;
      const size_t at = std::min(i, kinds.size());
      kinds.insert(kinds.begin() + static_cast<std::ptrdiff_t>(at), l.memory[i].kind);
    }
  }
  return kinds;
}

std::string memory_table(const RunPlan& plan, const PlanNotes& notes) {
  std::string text = header(plan, notes, "memory of a rank, GiB");
  for (const std::string& kind : memory_kinds(plan)) {
    text += row(plan, kind, [&](const LevelPlan& l) {
      double bytes = 0;
      for (const MemoryItem& item : l.memory) {
        if (item.kind == kind) bytes += static_cast<double>(item.bytes);
      }
      return fmt::format("{:.3f}", gib(bytes));
    });
  }
  text += row(plan, "together",
              [](const LevelPlan& l) { return fmt::format("{:.3f}", gib(l.memory_bytes())); });
  return text + row(plan, fmt::format("fits in {:.1f}", gib(plan.rank_memory)),
                    [&](const LevelPlan& l) { return plan.fits(l) ? "yes" : "no"; });
}

std::string time_table(const RunPlan& plan, const PlanNotes& notes) {
  const auto part = [&](const char* name, double (*value)(const StepTime&)) {
    return row(plan, name, [&](const LevelPlan& l) { return time_text(value(l.time)); });
  };
  std::string text = header(plan, notes, "a step of a rank");
  text += row(plan, "sent to peers, MB",
              [](const LevelPlan& l) { return fmt::format("{:.3f}", l.sent_bytes / 1e6); });
  text += part("forward", [](const StepTime& t) { return t.forward; });
  text += part("backward", [](const StepTime& t) { return t.backward; });
  text += part("optimizer", [](const StepTime& t) { return t.optimizer; });
  text += part("reducing gradients", [](const StepTime& t) { return t.reduce; });
  text += part("  not hidden", [](const StepTime& t) { return t.reduce_exposed; });
  text += part("gathering parameters", [](const StepTime& t) { return t.gather; });
  text += part("  not hidden", [](const StepTime& t) { return t.gather_exposed; });
  text += part("step", [](const StepTime& t) { return t.total(); });
  text += row(plan, "tokens/s", [&](const LevelPlan& l) {
    return fmt::format("{:.0f}", plan.tokens() / l.time.total());
  });
  return text + row(plan, "scaling efficiency",
                    [](const LevelPlan& l) { return fmt::format("{:.1f} %", l.efficiency * 100); });
}

}  // namespace

std::string memory_text(const RunPlan& plan, const PlanNotes& notes) {
  std::string text = batch_text(plan) + memory_table(plan, notes) + kShardNote;
  if (!notes.advice.empty()) text += notes.advice + "\n";
  return text;
}

std::string plan_text(const PlanRequest& request, const RunPlan& plan, const PlanNotes& notes) {
  std::string text = model_text(plan) + machine_text(request, plan) + batch_text(plan);
  text += memory_table(plan, notes) + time_table(plan, notes);
  text += kShardNote;
  if (notes.measured_seconds > 0) {
    const double predicted = plan.level(notes.level).time.total();
    text +=
        fmt::format("measured: {}, predicted {} ({:+.1f} %)\n", time_text(notes.measured_seconds),
                    time_text(predicted), (predicted / notes.measured_seconds - 1) * 100);
  }
  if (!notes.advice.empty()) text += notes.advice + "\n";
  return text;
}

std::string scaling_text(const std::vector<ScalingRow>& rows) {
  std::string text = fmt::format("{:>6} {:>6}", "hosts", "ranks");
  for (const ShardLevel level : kShardLevels) {
    text += fmt::format(" {:>12} {:>7}", fmt::format("{} ms", shard_name(level)), "eff %");
  }
  text += "\n";
  for (const ScalingRow& r : rows) {
    text += fmt::format("{:>6} {:>6}", r.topology.hosts, r.topology.ranks());
    for (const ShardLevel level : kShardLevels) {
      const auto rate = [&](const ScalingRow& x) {
        return x.plan.tokens() / x.plan.level(level).time.total() /
               static_cast<double>(x.topology.ranks());
      };
      text += fmt::format(" {:>12.1f} {:>7.1f}", r.plan.level(level).time.total() * 1e3,
                          rate(r) / rate(rows.front()) * 100);
    }
    text += "\n";
  }
  return text;
}

}  // namespace heddle
