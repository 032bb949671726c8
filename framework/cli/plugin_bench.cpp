#include "framework/cli/plugin_bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "framework/attention/catalog.h"
#include "framework/attention/names.h"
#include "framework/cli/bench_report.h"
#include "framework/cli/plugin_device.h"
#include "framework/config/load.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/parallel_for.h"
#include "framework/device/device.h"

namespace heddle {
namespace {

struct BenchOptions {
  std::string config, shapes, json, svg, device = "cpu", dtype;
  std::vector<std::string> overrides, plugins, ops, plugin_path;
  bool sweep = false, any_order = false;
  int reps = 5, threads = 0, timeout = 60;
  double peak_tflops = 0.0;

  bool on_cpu() const { return device == "cpu"; }
};

constexpr int kLeastRepsOnCpu = 5;

struct Contender {
  std::string name, path;
};

// Of a GPU bf16, since that is what runs compute in there.
uint32_t chosen_dtype(const BenchOptions& options) {
  if (!options.dtype.empty()) return dtype_of(options.dtype);
  return options.on_cpu() ? HEDDLE_DTYPE_F32 : HEDDLE_DTYPE_BF16;
}

std::vector<BenchCase> chosen_cases(const BenchOptions& options, AttentionConfig& attention) {
  const int sources = !options.config.empty() + !options.shapes.empty() + options.sweep;
  if (sources > 1) {
    throw config_error("plugin bench: --config, --shapes and --sweep exclude one another",
                       "name one of them");
  }
  std::vector<BenchCase> cases;
  if (!options.config.empty()) {
    const Config config = load_config(options.config, options.overrides);
    attention = config.attention;
    cases = cases_of_run(config);
  } else {
    cases = options.shapes.empty() ? cases_of_sweep() : cases_of_file(options.shapes);
  }
  for (BenchCase& c : cases) c.dtype = chosen_dtype(options);
  if (!options.ops.empty()) {
    std::erase_if(cases, [&](const BenchCase& c) {
      return std::find(options.ops.begin(), options.ops.end(), op_name(c.op)) == options.ops.end();
    });
  }
  return cases;
}

std::vector<Contender> find_contenders(const BenchOptions& options,
                                       const AttentionConfig& attention) {
  const PluginCatalog catalog = make_plugin_catalog(attention);
  std::vector<Contender> contenders;
  const uint32_t device_type = options.on_cpu() ? HEDDLE_DEVICE_CPU : HEDDLE_DEVICE_CUDA;
  std::vector<std::string> names;
  for (const PluginCandidate& c : catalog.plugins) {
    names.push_back(c.display_name());
    const bool wanted =
        options.plugins.empty() || std::find(options.plugins.begin(), options.plugins.end(),
                                             c.display_name()) != options.plugins.end();
    if (!wanted) continue;
    if (c.report.usable && c.report.device_type == device_type) {
      contenders.push_back({c.report.name, c.file.path});
    } else {
      fmt::print("not measured: {} {}\n", c.file.path,
                 c.report.usable
                     ? fmt::format("serves {}{}", device_name(c.report.device_type),
                                   options.on_cpu() ? "; --device cuda measures there" : "")
                     : c.why_not());
    }
  }
  for (const std::string& wanted : options.plugins) {
    if (std::find(names.begin(), names.end(), wanted) != names.end()) continue;
    throw plugin_error(
        fmt::format("plugin bench: no plugin is called '{}'; found: {}", wanted,
                    names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
        "heddle plugin list shows them; --plugin-path adds folders and files");
  }
  if (contenders.empty()) {
    throw plugin_error("plugin bench: no plugin to measure",
                       "heddle plugin list says why; --plugin-path adds folders and files");
  }
  return contenders;
}

void progress(const std::string& text) {
  if (::isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K{}", text);
}

// Repetitions take turns, so that what else happens on the machine hits all plugins alike.
void measure(const BenchOptions& options, const std::vector<Contender>& contenders,
             BenchResult& result) {
  std::vector<double> peaks, bandwidths;
  const auto look_at_machine = [&] {
    if (!options.on_cpu()) return;
    const MachineLimits limits = measure_machine();
    peaks.push_back(limits.flops);
    bandwidths.push_back(limits.bytes_per_second);
  };
  const size_t n = contenders.size();
  for (int rep = 0; rep < options.reps; ++rep) {
    look_at_machine();
    for (size_t i = 0; i < result.rows.size(); ++i) {
      // Backwards every other time within a case.
      const size_t at = rep % 2 == 0 ? i : i / n * n + (n - 1 - i % n);
      BenchRow& row = result.rows[at];
      if (row.failed()) continue;
      progress(fmt::format("repetition {} of {}: {} {}, {}", rep + 1, options.reps, row.plugin,
                           op_name(row.shape.op), shape_text(row.shape)));
      MeasureOptions one;
      one.threads = result.threads;
      one.device = options.device;
      one.any_order = options.any_order;
      one.verify = rep == 0;
      one.deadline = std::chrono::seconds(options.timeout);
      row.last = measure_in_child(contenders[at % n].path, row.shape, one);
      if (!row.failed()) row.us.push_back(row.last.us);
    }
  }
  progress("");
  if (!options.on_cpu()) return;
  result.peak_flops = median(peaks);
  result.peak_spread = relative_spread(peaks);
  result.bytes_per_second = median(bandwidths);
}

// What is stated of a GPU: by the user, or by its data sheet, which is about 16-bit products.
void state_limits(const BenchOptions& options, BenchResult& result) {
  const MachineLimits sheet = stated_limits(result.machine);
  result.bytes_per_second = sheet.bytes_per_second;
  if (chosen_dtype(options) != HEDDLE_DTYPE_F32) result.peak_flops = sheet.flops;
  if (options.peak_tflops > 0.0) result.peak_flops = 1e12 * options.peak_tflops;
}

int run_bench(const BenchOptions& options) {
  if (options.on_cpu() && options.reps < kLeastRepsOnCpu) {
    throw config_error(fmt::format("plugin bench: --reps {}, at least {} are needed where other "
                                   "programs share the processors",
                                   options.reps, kLeastRepsOnCpu),
                       "leave it out");
  }
  AttentionConfig attention;
  const std::vector<BenchCase> cases = chosen_cases(options, attention);
  attention.plugin_path.insert(attention.plugin_path.begin(), options.plugin_path.begin(),
                               options.plugin_path.end());
  const std::vector<Contender> contenders = find_contenders(options, attention);
  set_num_threads(options.threads);
  BenchResult result;
  result.threads = num_threads();
  result.machine = make_plugin_device(options.device)->description();
  result.device = options.device;
  result.dtype = chosen_dtype(options);
  if (!options.on_cpu()) state_limits(options, result);
  for (const BenchCase& c : cases) {
    for (const Contender& contender : contenders) {
      BenchRow row;
      row.shape = c;
      row.plugin = contender.name;
      result.rows.push_back(std::move(row));
    }
  }
  measure(options, contenders, result);
  fmt::print("{}", bench_table(result));
  if (!options.json.empty()) {
    write_file_atomically(options.json, json::pretty(bench_json(result)));
  }
  if (!options.svg.empty()) write_file_atomically(options.svg, bench_svg(result));
  const auto broken = [](const BenchRow& r) { return r.failed() && !r.last.refused; };
  const bool failed = std::any_of(result.rows.begin(), result.rows.end(), broken);
  return failed ? static_cast<int>(ExitCode::kPlugin) : 0;
}

void add_case(CLI::App& plugin, int& exit_code) {
  struct Arguments {
    std::string path, text;
    MeasureOptions options;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* command = plugin.add_subcommand("bench-case")->group("");
  command->add_option("path", a->path)->required();
  command->add_option("case", a->text)->required();
  command->add_option("threads", a->options.threads)->required();
  command->add_option("--device", a->options.device);
  command->add_flag("--verify", a->options.verify);
  command->add_flag("--any-order", a->options.any_order);
  command->callback([a, &exit_code] { exit_code = run_measurement(a->path, a->text, a->options); });
}

}  // namespace

void add_bench(CLI::App& plugin, int& exit_code) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* command =
      plugin.add_subcommand("bench", "How fast every backend is, beside the machine's limits");
  command->add_option("--config", o->config, "measure the layers of this run file");
  command->add_option("--set", o->overrides, "section.key=value, applied to --config");
  command->add_option(
      "--shapes", o->shapes,
      R"(a file with a JSON list such as [{"seq_len": 2048, "n_head": 8, "head_dim": 64}])");
  command->add_flag("--sweep", o->sweep, "lengths 128 to 1024 with and without a window (default)");
  command->add_option("--plugins", o->plugins, "only these, separated by commas")->delimiter(',');
  command->add_option("--ops", o->ops, "forward, backward, decode, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward", "decode"}));
  command->add_option("--plugin-path", o->plugin_path,
                      "folders or .so files to search first, as attention.plugin_path");
  command->add_option("--device", o->device, "where: cpu (default) or cuda, its device 0")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--dtype", o->dtype, "f32 (default on cpu), bf16 (default on cuda) or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command
      ->add_option("--peak-tflops", o->peak_tflops,
                   "what the GPU can do at most, where its data sheet is not known here")
      ->check(CLI::PositiveNumber);
  command->add_flag("--any-order", o->any_order,
                    "do not ask for the same bits every time, as training does");
  command->add_option("--reps", o->reps, "repetitions, on cpu at least 5")
      ->check(CLI::Range(1, 1000));
  command->add_option("--threads", o->threads, "0: all processors")->check(CLI::Range(0, 4096));
  command->add_option("--timeout", o->timeout, "seconds for one measurement")
      ->check(CLI::Range(1, 86400));
  command->add_option("--json", o->json, "write the results to this file");
  command->add_option("--svg", o->svg, "write a picture to this file");
  command->callback([o, &exit_code] { exit_code = run_bench(*o); });
  add_case(plugin, exit_code);
}

}  // namespace heddle
