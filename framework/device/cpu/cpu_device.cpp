#include <dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "framework/core/buffer.h"
#include "framework/core/parallel_for.h"
#include "framework/device/cpu/cpu_isa.h"
#include "framework/device/cpu/cpu_ops.h"
#include "framework/device/device.h"

namespace heddle {
namespace {

// oneDNN follows HEDDLE_CPU_ISA downwards. It takes the setting only before its first use in a
// process; a later device with another set keeps oneDNN as it is.
void limit_onednn(CpuIsa isa) {
  if (isa == CpuIsa::kBaseline) dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
  if (isa == CpuIsa::kAvx2) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(CpuIsa isa) : isa_(isa), ops_(ops_table(isa)) { limit_onednn(isa); }

  DeviceType type() const override { return DeviceType::kCpu; }
  int index() const override { return 0; }
  std::string description() const override {
    const int threads = num_threads();
    return std::string("cpu (") + cpu_isa_name(isa_) + ", " + std::to_string(threads) +
           (threads == 1 ? " thread)" : " threads)");
  }

  DeviceBuffer allocate(size_t bytes, const std::string& what) override {
    auto block = std::make_shared<HostBuffer>(bytes, what);
    return DeviceBuffer(block, block->data());
  }
  void upload(void* device, const void* host, size_t bytes) override {
    if (bytes != 0) std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes) override {
    if (bytes != 0) std::memcpy(host, device, bytes);
  }
  void synchronize() override {}
  void* stream() override { return nullptr; }
  Ops& ops() override { return ops_; }

  // Short bursts within 40 ms; the best counts, the others met somebody else on the processor.
  double measure_peak_flops() override {
    constexpr double kBurstSeconds = 2e-3, kBudget = 40e-3;
    burst(kLeast);  // wakes the threads
    double spent = 0, best = 1e9;
    for (int i = 0; i < 3; ++i) best = std::min(best, burst(kLeast));
    const auto iterations =
        static_cast<int64_t>(kLeast * std::clamp(kBurstSeconds / best, 1.0, 1000.0));
    for (best = 1e9; spent < kBudget;) {
      const double taken = burst(iterations);
      best = std::min(best, taken);
      spent += taken;
    }
    return 2.0 * static_cast<double>(iterations) * kernels::kFmaChains * ops_table(isa_).lanes *
           num_threads() / best;
  }

 private:
  static constexpr int64_t kLeast = 20000;  // iterations: tens of microseconds

  double burst(int64_t iterations) const {
    const auto& table = ops_table(isa_);
    const auto begin = std::chrono::steady_clock::now();
    parallel_for(num_threads(), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) table.fma_burst(iterations);
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  CpuIsa isa_;
  CpuOps ops_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  const char* wanted = std::getenv("HEDDLE_CPU_ISA");
  return std::make_unique<CpuDevice>(choose_cpu_isa(wanted == nullptr ? "" : wanted));
}

}  // namespace heddle
