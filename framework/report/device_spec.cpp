#include "framework/report/device_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/device.h"

namespace heddle {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

Error usage_error(std::string message, std::string remedy) {
  return Error(ExitCode::kUsage, "plan", std::move(message), std::move(remedy));
}

// Shares of peak: nanochat's d24 in bf16 on 8 H100 ran at 50.0 % of 989 TFLOP/s by its own count
// (its leaderboard, row 1), 49 % of what is computed; llm.c reaches up to 60 % on A100 with a
// smaller model, so the same is assumed there.
// Muon's products are large ones alone: 60 % is assumed. Latencies: NCCL's own tuning table for
// rings with its simple protocol, 3.4 us over NVLink and 14 us over the network.
constexpr double kGpuModelShare = 0.49, kGpuMuonShare = 0.60;
// Context, library workspaces, NCCL's channels.
constexpr double kGpuReserve = 2 * kGiB;
constexpr Link kNvlink4 = {370e9, 3.4e-6};
constexpr Link kNvlink3 = {230e9, 3.4e-6};

DeviceSpec gpu(std::string name, double peak, double memory, double memory_rate, Link local,
               Link remote, std::string source) {
  DeviceSpec d;
  d.name = std::move(name);
  d.source = std::move(source);
  d.compute_bytes = 2;
  d.peak_flops = peak;
  d.model_share = kGpuModelShare;
  d.optimizer_share = kGpuMuonShare;
  d.memory_bytes = memory;
  d.reserved_bytes = kGpuReserve;
  d.memory_bytes_per_s = memory_rate;
  d.ring = true;
  d.overlap = 1.0;
  d.local = local;
  d.remote = remote;
  return d;
}

std::vector<DeviceSpec> gpu_table() {
  return {
      gpu("a100", 312e12, 79.2 * kGiB, 2.04e12, kNvlink3, {8 * 24e9, 14e-6},
          "A100 SXM 80 GB: 312 TFLOP/s dense bf16, 2.04 TB/s; NVLink 3 at 230 GB/s of 300; eight "
          "200 Gb/s ports a host at 24 GB/s each"),
      gpu("h100", 989e12, 79.6 * kGiB, 3.35e12, kNvlink4, {8 * 47e9, 14e-6},
          "H100 SXM 80 GB: 989 TFLOP/s dense bf16, 3.35 TB/s; NVLink 4 at 370 GB/s of 450 "
          "(NVIDIA/nccl-tests #212); eight 400 Gb/s ports a host at 47 GB/s each (#290)"),
      gpu("h200", 989e12, 139.8 * kGiB, 4.8e12, kNvlink4, {8 * 47e9, 14e-6},
          "H200 SXM 141 GB: as h100, 4.8 TB/s"),
  };
}

// Shares: docs/benchmarks/cpu.md. Links: ranks of one host copy through shared memory with the
// cores that also compute; hosts are assumed to be 10 Gb/s apart.
DeviceSpec this_host() {
  DeviceSpec d;
  d.name = "cpu";
  d.shared_host = true;
  d.processors = available_processors();
  const auto device = make_cpu_device();
  // The best of several: somebody else may be on the processors now.
  for (int i = 0; i < 3; ++i) d.peak_flops = std::max(d.peak_flops, device->measure_peak_flops());
  d.model_share = 0.57;  // 53 % on two threads
  d.thread_share = 0.93;
  d.optimizer_share = 0.45;
  d.memory_bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  d.memory_bytes_per_s = 20e9;
  d.local = {3e9, 10e-6};
  d.remote = {1.1e9, 50e-6};
  d.source = fmt::format(
      "{}: {:.0f} GFLOP/s measured now, {:.1f} GiB; assumed: 20 GB/s of memory, "
      "3 GB/s between ranks, 1.1 GB/s between hosts",
      device->description(), d.peak_flops / 1e9, d.memory_bytes / kGiB);
  return d;
}

struct Value {
  std::string_view name;
  double DeviceSpec::*number;
  Link DeviceSpec::*link;
  double Link::*link_number;
};

constexpr Value kValues[] = {
    {"peak_flops", &DeviceSpec::peak_flops, nullptr, nullptr},
    {"model_share", &DeviceSpec::model_share, nullptr, nullptr},
    {"thread_share", &DeviceSpec::thread_share, nullptr, nullptr},
    {"optimizer_share", &DeviceSpec::optimizer_share, nullptr, nullptr},
    {"memory_bytes", &DeviceSpec::memory_bytes, nullptr, nullptr},
    {"memory_bytes_per_s", &DeviceSpec::memory_bytes_per_s, nullptr, nullptr},
    {"overlap", &DeviceSpec::overlap, nullptr, nullptr},
    {"local_bytes_per_s", nullptr, &DeviceSpec::local, &Link::bytes_per_s},
    {"local_latency_s", nullptr, &DeviceSpec::local, &Link::latency_s},
    {"remote_bytes_per_s", nullptr, &DeviceSpec::remote, &Link::bytes_per_s},
    {"remote_latency_s", nullptr, &DeviceSpec::remote, &Link::latency_s},
};
constexpr std::string_view kExchangeBytes = "exchange_bytes";

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names{"cpu"};
  for (const DeviceSpec& d : gpu_table()) names.push_back(d.name);
  return names;
}

DeviceSpec find_device(const std::string& name) {
  if (name == "cpu") return this_host();
  for (const DeviceSpec& d : gpu_table()) {
    if (d.name == name) return d;
  }
  throw usage_error(
      "there is no device '" + name + "'",
      fmt::format("Use one of {}; --set changes single figures", fmt::join(device_names(), ", ")));
}

std::vector<std::string> device_value_names() {
  std::vector<std::string> names;
  for (const Value& v : kValues) names.emplace_back(v.name);
  names.emplace_back(kExchangeBytes);
  return names;
}

void set_device_value(DeviceSpec& device, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  const std::string key = assignment.substr(0, equals);
  const std::string text = equals == std::string::npos ? "" : assignment.substr(equals + 1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool latency = key.ends_with("latency_s") || key == "overlap";
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number) ||
      number < 0 || (number == 0 && !latency)) {
    throw usage_error(fmt::format("--set {}: got '{}', expected a positive number", key, text),
                      "Write for example --set remote_bytes_per_s=12.5e9");
  }
  if (key == kExchangeBytes) {
    if (number != 2 && number != 4) {
      throw usage_error("--set exchange_bytes: got " + text + ", expected 2 or 4", {});
    }
    device.exchange_bytes = static_cast<int64_t>(number);
    return;
  }
  for (const Value& v : kValues) {
    if (v.name != key) continue;
    (v.number != nullptr ? device.*v.number : (device.*v.link).*v.link_number) = number;
    return;
  }
  throw usage_error(fmt::format("--set {}: there is no such figure", key),
                    fmt::format("Figures are {}", fmt::join(device_value_names(), ", ")));
}

}  // namespace heddle
