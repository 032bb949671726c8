// heddle doctor: what this machine offers to a run, and what to do about what it does not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>

#include "framework/attention/catalog.h"
#include "framework/attention/names.h"
#include "framework/cli/commands.h"
#include "framework/config/load.h"
#include "framework/core/parallel_for.h"
#include "framework/core/version.h"
#include "framework/device/cuda/cuda_module.h"
#include "framework/device/device.h"

namespace heddle {
namespace {

double gib(size_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0);
}

void print_device(const CudaDeviceInfo& d, size_t devices) {
  fmt::print("  device {}: {}, sm_{}, {:.1f} GiB, {}\n", d.index, d.name, d.arch, gib(d.memory),
             d.identity);
  if (!d.peers.empty()) fmt::print("    reaches the memory of {}\n", fmt::join(d.peers, ", "));
  if (d.peers.size() + 1 < devices) {
    fmt::print("    {}: messages go through the host's memory\n",
               d.peers.empty() ? "reaches no other device's memory" : "does not reach the others'");
  }
}

void print_nccl(const NcclInfo& nccl) {
  if (nccl.problem.empty()) {
    fmt::print("NCCL: {} ({})\n", nccl.version, nccl.path);
  } else {
    fmt::print("{}\n  {}\n", nccl.problem, nccl.remedy);
  }
}

void print_cuda() {
  std::string why;
  const CudaModule* module = load_cuda_module(&why);
  if (module == nullptr) {
    fmt::print("CUDA: {}\n", why);
    return;
  }
  const CudaSystem system = module->inspect();
  fmt::print("CUDA: built for {}, driver {}\n", system.runtime,
             system.driver.empty() ? "none" : "for CUDA " + system.driver);
  for (const CudaDeviceInfo& d : system.devices) print_device(d, system.devices.size());
  if (!system.problem.empty()) fmt::print("  {}: {}\n", system.problem, system.remedy);
  print_nccl(module->find_nccl());
}

void print_plugins(const AttentionConfig& config) {
  const PluginCatalog catalog = make_plugin_catalog(config);
  fmt::print("attention plugins\n");
  for (const PluginCandidate& c : catalog.plugins) {
    if (c.report.usable) {
      fmt::print("  {} {} ({})\n", c.display_name(), c.report.version,
                 device_name(c.report.device_type));
    } else {
      fmt::print("  {} cannot be used: it {}\n", c.display_name(), c.why_not());
    }
  }
  if (catalog.plugins.empty()) {
    fmt::print("  none; searched {}\n", fmt::join(catalog.files.folders, ", "));
  }
}

void run(const std::string& file) {
  const AttentionConfig attention = file.empty() ? AttentionConfig{} : load_config(file, {}).attention;
  fmt::print("heddle {}\n{}, {} processors for this process\n", kVersion,
             make_cpu_device()->description(), available_processors());
  print_cuda();
  print_plugins(attention);
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  auto file = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("doctor", "Say what this machine offers: processors, CUDA, plugins");
  command->add_option("config", *file, "YAML file whose attention.plugin_path is searched too");
  command->callback([file, &exit_code] {
    run(*file);
    exit_code = 0;
  });
}

}  // namespace heddle
