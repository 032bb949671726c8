// A device: where tensors live and who computes on them. The model and the optimizer are written
// once against Device and Ops.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "framework/device/device_link.h"
#include "framework/device/ops.h"

namespace heddle {

// Numbered as in the plugin ABI and DLPack.
enum class DeviceType : uint32_t { kCpu = 1, kCuda = 2 };

// A zeroed block of device memory that frees itself.
using DeviceBuffer = std::shared_ptr<void>;

// Operations that are enqueued again and again, by a device that can record them.
class Replay {
 public:
  virtual ~Replay() = default;
  // Enqueues what `body` enqueues: by calling it, or, once it has been recorded, from the record.
  // Every call of body enqueues the same operations with the same arguments, and nothing but the
  // first waits or allocates; what body does on the host may be left out.
  virtual void run(const std::function<void()>& body) = 0;
};

// Enqueues what `body` enqueues. replay: nullptr where nothing is recorded (Device::make_replay).
inline void enqueue(Replay* replay, const std::function<void()>& body) {
  replay != nullptr ? replay->run(body) : body();
}

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceType type() const = 0;
  virtual int index() const = 0;
  // For people: "cpu (avx2, 2 threads)".
  virtual std::string description() const = 0;

  // What attention reads and matrix products round their operands to: fp32, or bf16.
  virtual DType compute_dtype() const { return DType::kF32; }
  // As heddle_device has them: 10 * major + minor of a GPU, and its multiprocessors; 0 on CPU.
  virtual uint32_t arch() const { return 0; }
  virtual uint32_t units() const { return 0; }

  // Throws heddle::Error (environment) naming `what` and the size when memory is not to be had.
  virtual DeviceBuffer allocate(size_t bytes, const std::string& what) = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  // Returns when everything enqueued so far is done.
  virtual void synchronize() = 0;
  // Microseconds that the work takes which `enqueue` hands over: by the clock, or between two
  // events of a GPU's stream.
  virtual double time_us(const std::function<void()>& enqueue) {
    const auto begin = std::chrono::steady_clock::now();
    enqueue();
    synchronize();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
  }
  // nullptr: the device does not record. Ends before the device.
  virtual std::unique_ptr<Replay> make_replay() { return nullptr; }
  // What attention plugins get as heddle_attention_call::stream; nullptr on CPU.
  virtual void* stream() = 0;

  virtual Ops& ops() = 0;

  // FLOP/s of a burst of fused multiply-adds on all threads of a CPU, of large products on a GPU,
  // at most 50 ms: MFU's denominator.
  virtual double measure_peak_flops() = 0;

  // ---- among ranks

  // Is `address` this device's memory, which the host cannot touch? Never on CPU.
  virtual bool holds(const void* /*address*/) const { return false; }
  // The same in every process that uses this very device: "GPU-8a1c...". Empty on CPU.
  virtual std::string identity() const { return {}; }
  // `callback` runs before the host begins to wait for the compute stream, which may hold work that
  // follows a link's: it can watch over that. Empty: none.
  virtual void before_wait(std::function<void()> /*callback*/) {}
  // For connect(): made by one rank, given to all. Throws heddle::Error (environment) where this
  // device has no links, or their library cannot be loaded; so does check_links().
  virtual std::string make_link_id();
  virtual void check_links() const;
  // Collective over the ranks with that id, one device each; the link is made when not busy().
  virtual std::unique_ptr<DeviceLink> connect(const std::string& id, int rank, int world_size);
};

// The host's processors, fp32. The instruction set is the best that the processor has, or what
// HEDDLE_CPU_ISA (baseline | avx2 | avx512) names; throws when that cannot run here.
std::unique_ptr<Device> make_cpu_device();

}  // namespace heddle
