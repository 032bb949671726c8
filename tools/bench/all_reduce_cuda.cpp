// Times Heddle's collectives between CUDA devices, one rank a device:
//
//   heddle launch -n $(heddle_all_reduce_cuda --devices) -- heddle_all_reduce_cuda --out FILE
//
// For every size: seconds of one operation, and the bus bandwidth as nccl-tests defines it, which
// does not depend on the number of ranks W: bytes / seconds * 2 (W-1)/W for an all-reduce, (W-1)/W
// for its halves. A rank alone sends to itself: that shows that the library works, no bandwidth.
// Rank 0 prints a table and writes it as JSON. Exit codes are heddle's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "framework/comm/nccl/nccl_communicator.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/json.h"
#include "framework/device/cuda/cuda_module.h"
#include "framework/device/make_device.h"

namespace heddle {
namespace {

struct Options {
  int64_t min_kib = 256, max_mib = 256;
  int repeats = 20;
  std::string out;
  bool devices = false;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

json::array sizes_table(const Options& options, int64_t max_bytes,
                        const std::function<json::object(int64_t bytes)>& measure) {
  json::array rows;
  for (int64_t bytes = options.min_kib << 10; bytes <= max_bytes; bytes *= 4) {
    rows.push_back(measure(bytes));
  }
  return rows;
}

// A rank alone: messages to itself.
json::object measure_alone(const Options& options, Device& device) {
  const int64_t most = options.max_mib << 20;
  const auto link = device.connect(device.make_link_id(), 0, 1);
  while (link->busy()) {
  }
  const DeviceBuffer from = device.allocate(static_cast<size_t>(most), "messages");
  const DeviceBuffer to = device.allocate(static_cast<size_t>(most), "messages");
  const std::vector<char> pattern(static_cast<size_t>(most), 'x');
  device.upload(from.get(), pattern.data(), pattern.size());
  json::object result{{"ranks", 1}, {"link", link->description()}};
  result["copies"] = sizes_table(options, most, [&](int64_t bytes) {
    double least = 1e9;
    for (int i = 0; i < options.repeats; ++i) {
      const LinkMessage send{static_cast<std::byte*>(from.get()), bytes, 0};
      const LinkMessage receive{static_cast<std::byte*>(to.get()), bytes, 0};
      const double begin = seconds_now();
      link->follow_compute();
      link->exchange({&send, 1}, {&receive, 1});
      while (link->busy()) {
      }
      link->set_mark(0);
      while (!link->passed(0)) {
      }
      least = std::min(least, seconds_now() - begin);
    }
    fmt::print("{:>12} bytes to itself {:>10.1f} us\n", bytes, least * 1e6);
    return json::object{{"bytes", bytes}, {"seconds", least}};
  });
  std::vector<char> got(pattern.size());
  device.download(got.data(), to.get(), got.size());
  if (got != pattern) throw comm_error("bytes that were sent did not arrive");
  link->finish();
  while (link->busy()) {
  }
  return result;
}

class Timer {
 public:
  Timer(const Options& options, Communicator& comm, Device& device)
      : options_(options), comm_(comm), device_(device) {}

  // Seconds of one `operation`, of the slowest rank.
  double measure(const std::function<Work()>& operation) {
    run(operation, 3);
    comm_.barrier();
    const double begin = seconds_now();
    run(operation, options_.repeats);
    return comm_.all_reduce_max((seconds_now() - begin) / options_.repeats);
  }

 private:
  void run(const std::function<Work()>& operation, int times) {
    Work last;
    for (int i = 0; i < times; ++i) last = operation();
    last.wait();
    device_.synchronize();
  }

  const Options& options_;
  Communicator& comm_;
  Device& device_;
};

void check_sum(Communicator& comm, Device& device, const std::span<float> data) {
  const std::vector<float> own(data.size(), static_cast<float>(comm.rank() + 1));
  device.upload(data.data(), own.data(), data.size_bytes());
  comm.all_reduce_sum(data);
  std::vector<float> got(data.size());
  device.download(got.data(), data.data(), data.size_bytes());
  const auto want = static_cast<float>(comm.world_size() * (comm.world_size() + 1) / 2);
  const auto wrong = std::count_if(got.begin(), got.end(), [&](float x) { return x != want; });
  if (wrong != 0) throw comm_error(fmt::format("{} elements of a sum are wrong", wrong));
}

json::object measure_ranks(const Options& options, Communicator& comm, Device& device) {
  const int64_t most = options.max_mib << 20;
  const DeviceBuffer memory = device.allocate(static_cast<size_t>(most), "messages");
  auto* data = static_cast<float*>(memory.get());
  const double share = 1.0 - 1.0 / comm.world_size();
  check_sum(comm, device, {data, static_cast<size_t>(most) / sizeof(float)});
  device.ops().zero(data, static_cast<size_t>(most));
  Timer timer(options, comm, device);
  json::object result{{"ranks", comm.world_size()}, {"link", comm.description()}};
  result["collectives"] = sizes_table(options, most, [&](int64_t bytes) {
    const std::span<float> x(data, static_cast<size_t>(bytes) / sizeof(float));
    const auto counts = even_counts(static_cast<int64_t>(x.size()), comm.world_size());
    const double all = timer.measure([&] { return comm.start_all_reduce_sum(x); });
    const double reduce = timer.measure([&] { return comm.start_reduce_scatter_sum(x, counts); });
    const double gather = timer.measure([&] { return comm.start_all_gather(x, counts); });
    const auto bus = [&](double factor, double seconds) {
      return factor * static_cast<double>(bytes) / seconds / 1e9;
    };
    if (comm.rank() == 0) {
      fmt::print(
          "{:>12} bytes  all_reduce {:>9.1f} us {:>7.2f} GB/s  reduce_scatter {:>9.1f} us "
          "{:>7.2f} GB/s  all_gather {:>9.1f} us {:>7.2f} GB/s\n",
          bytes, all * 1e6, bus(2 * share, all), reduce * 1e6, bus(share, reduce), gather * 1e6,
          bus(share, gather));
    }
    return json::object{{"bytes", bytes},
                        {"all_reduce_seconds", all},
                        {"all_reduce_bus_gb_s", bus(2 * share, all)},
                        {"reduce_scatter_seconds", reduce},
                        {"reduce_scatter_bus_gb_s", bus(share, reduce)},
                        {"all_gather_seconds", gather},
                        {"all_gather_bus_gb_s", bus(share, gather)}};
  });
  return result;
}

void print_device_count() {
  std::string why;
  const CudaModule* module = load_cuda_module(&why);
  if (module == nullptr) throw environment_error("cuda", why);
  const CudaSystem system = module->inspect();
  if (!system.problem.empty()) throw environment_error("cuda", system.problem, system.remedy);
  fmt::print("{}\n", system.devices.size());
}

void run(const Options& options) {
  if (options.devices) return print_device_count();
  Ranks ranks = connect_ranks({}, resolve_launch(process_environment()));
  const auto device =
      make_device({.kind = "cuda"}, ranks.comm->local_rank(), ranks.comm->local_size());
  const bool chief = ranks.comm->rank() == 0;
  json::object result;
  if (ranks.comm->world_size() == 1) {
    result = measure_alone(options, *device);
  } else {
    const auto comm = make_nccl_communicator(std::move(ranks.comm), ranks.rendezvous, *device);
    result = measure_ranks(options, *comm, *device);
    comm->barrier();
    ranks.rendezvous->leave();
    comm->finish();
  }
  result["device"] = device->description();
  if (chief && !options.out.empty()) write_file_atomically(options.out, json::pretty(result));
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  heddle::Options options;
  CLI::App app{"Times Heddle's collectives between CUDA devices, one rank a device"};
  app.add_option("--min-kib", options.min_kib, "smallest buffer");
  app.add_option("--max-mib", options.max_mib, "largest buffer; each size is four times the last");
  app.add_option("--repeats", options.repeats, "of every measurement");
  app.add_option("--out", options.out, "file for the results as JSON");
  app.add_flag("--devices", options.devices, "print how many devices there are, and stop");
  CLI11_PARSE(app, argc, argv);
  try {
    heddle::run(options);
    return 0;
  } catch (const heddle::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    heddle::abort_job(static_cast<int>(e.code()));
  }
}
