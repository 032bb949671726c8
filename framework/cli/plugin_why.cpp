#include "framework/cli/plugin_why.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "framework/attention/selection.h"
#include "framework/cli/bench_case.h"
#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/train/run.h"

namespace heddle {
namespace {

std::string layers_of(const ModelSpec& spec, const AttentionLayerKind& kind) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < spec.n_layer; ++i) {
    if (attention_kind(spec, i) == kind) layers.push_back(i);
  }
  return fmt::format("{} {}", layers.size() == 1 ? "layer" : "layers", fmt::join(layers, ", "));
}

std::string rule_text(const AttentionConfig& config) {
  if (config.backend != "auto") {
    return fmt::format("attention.backend names '{}': no other backend is asked, except for decode",
                       config.backend);
  }
  return "attention.backend is auto: of the backends that accept forward and backward, first "
         "those\n"
         "that promise the same bits every time, then the lowest estimated time of both, counted\n"
         "twice for a plugin that declares ALLOCATES or OWN_THREADS, then the search order";
}

}  // namespace

WhyAnswer explain_choice(const Config& config) {
  const ModelSpec spec = attention_spec(config);
  const BatchPlan plan = plan_batch(config.train, spec.sequence_len, 0, 1);
  set_num_threads(static_cast<int>(config.train.threads));
  const std::unique_ptr<Device> device = make_cpu_device();
  WhyAnswer answer;
  answer.text = fmt::format("{}\n{}\n", device->description(), rule_text(config.attention));
  for (const AttentionLayerKind& kind : attention_kinds(spec)) {
    answer.text += fmt::format("\n{}: ", layers_of(spec, kind));
    try {
      // A host of its own: explain() then speaks of this kind alone. Probes are remembered.
      const auto host = AttentionHost::create(config.attention, *device);
      host->select({kind}, std::max<int64_t>(plan.micro_batch, 1), spec.sequence_len,
                   attention_layout(spec));
      answer.text += host->explain() + "\n";
    } catch (const Error& error) {
      if (error.code() != ExitCode::kPlugin) throw;
      answer.every_kind_served = false;
      answer.text += fmt::format("{}\n  {}\n", error.message(), error.remedy());
    }
  }
  return answer;
}

void add_why(CLI::App& plugin, int& exit_code) {
  struct Options {
    std::string file;
    std::vector<std::string> overrides;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      plugin.add_subcommand("why", "Which backend each kind of layer gets, and why no other");
  command->add_option("file", o->file, "configuration, e.g. configs/runs/recall_cpu.yaml")
      ->required();
  command->add_option("overrides", o->overrides, "section.key=value, as in heddle train");
  command->callback([o, &exit_code] {
    const WhyAnswer answer = explain_choice(load_config(o->file, o->overrides));
    fmt::print("{}", answer.text);
    exit_code = answer.every_kind_served ? 0 : static_cast<int>(ExitCode::kPlugin);
  });
}

}  // namespace heddle
