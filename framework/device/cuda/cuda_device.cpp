// The module's side: a CUDA device, and what can be said about this machine's.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "framework/core/version.h"
#include "framework/device/cuda/cuda_error.h"
#include "framework/device/cuda/cuda_link.h"
#include "framework/device/cuda/cuda_module.h"
#include "framework/device/cuda/cuda_ops.h"
#include "framework/device/cuda/cuda_replay.h"
#include "framework/device/cuda/nccl_library.h"

namespace heddle {
namespace {

constexpr int kLeastArch = 80;

// What NVIDIA recommends: 32 MiB for the products of sm_90 and newer.
size_t blas_workspace(int arch) {
  return size_t{arch >= 90 ? 32u : 4u} << 20;
}

std::string mebibytes(size_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

// A stream that is destroyed after everything that uses it.
struct Stream {
  cudaStream_t handle = nullptr;
  Stream() {
    check_cuda(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "making a stream");
  }
  ~Stream() { (void)cudaStreamDestroy(handle); }
};

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { check_cuda(cudaEventCreateWithFlags(&handle, cudaEventDefault), "making an event"); }
  ~Event() { (void)cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const CudaDeviceInfo& info, int units, const CudaOptions& options)
      : info_(info),
        units_(units),
        bf16_(options.bf16),
        graphs_(options.graphs),
        ops_(stream_.handle, bf16_, blas_workspace(info.arch)) {}

  DeviceType type() const override { return DeviceType::kCuda; }
  int index() const override { return info_.index; }
  std::string description() const override {
    return "cuda:" + std::to_string(info_.index) + " (" + info_.name + ", sm_" +
           std::to_string(info_.arch) + ", " + mebibytes(info_.memory) + ", " +
           (bf16_ ? "bf16" : "fp32") + ")";
  }
  DType compute_dtype() const override { return bf16_ ? DType::kBF16 : DType::kF32; }
  uint32_t arch() const override { return static_cast<uint32_t>(info_.arch); }
  uint32_t units() const override { return static_cast<uint32_t>(units_); }

  DeviceBuffer allocate(size_t bytes, const std::string& what) override {
    if (bytes == 0) return nullptr;
    use();
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      size_t free = 0, total = 0;
      (void)cudaMemGetInfo(&free, &total);
      throw environment_error(
          "memory",
          "cuda:" + std::to_string(info_.index) + " has no " + mebibytes(bytes) + " for " + what +
              ": " + mebibytes(free) + " of " + mebibytes(total) + " are free",
          "lower train.device_batch_size or model.sequence_len; heddle plan shows what needs "
          "memory");
    }
    DeviceBuffer block(data, [](void* p) { (void)cudaFree(p); });
    check_cuda(cudaMemsetAsync(data, 0, bytes, stream_.handle), "clearing memory");
    return block;
  }
  // Returns when `host` may be changed.
  void upload(void* device, const void* host, size_t bytes) override {
    if (bytes == 0) return;
    use();
    ops_.forget_weights();
    check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_.handle),
               "copying to the device");
  }
  void download(void* host, const void* device, size_t bytes) override {
    use();
    ops_.about_to_wait();  // copies into pageable memory wait, too
    if (bytes != 0) {
      check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_.handle),
                 "copying from the device");
    }
    ops_.settle();
  }
  void synchronize() override {
    use();
    ops_.settle();
  }
  double time_us(const std::function<void()>& enqueue) override {
    use();
    const Event begin, end;
    check_cuda(cudaEventRecord(begin.handle, stream_.handle), "recording an event");
    enqueue();
    check_cuda(cudaEventRecord(end.handle, stream_.handle), "recording an event");
    check_cuda(cudaEventSynchronize(end.handle), "waiting for an event");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle), "reading events");
    return 1e3 * static_cast<double>(milliseconds);
  }
  std::unique_ptr<Replay> make_replay() override {
    if (graphs_ == CudaOptions::Graphs::kOff) return nullptr;
    return std::make_unique<CudaReplay>(stream_.handle, ops_,
                                        graphs_ == CudaOptions::Graphs::kRequired);
  }
  void* stream() override { return stream_.handle; }
  Ops& ops() override { return ops_; }

  // Products of growing squares until one takes long enough to be measured; the best of a few.
  double measure_peak_flops() override {
    constexpr int64_t kLargest = 8192;
    constexpr double kEnough = 1e-3;
    double best = 0;
    for (int64_t side = 128; side <= kLargest; side *= 2) {
      const double seconds = product_seconds(side);
      best = std::max(best, 2.0 * static_cast<double>(side * side * side) / seconds);
      if (seconds >= kEnough) break;
    }
    return best;
  }

  bool holds(const void* address) const override {
    use();
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    return attributes.type == cudaMemoryTypeDevice;
  }
  std::string identity() const override { return info_.identity; }
  void before_wait(std::function<void()> callback) override {
    ops_.before_wait(std::move(callback));
  }
  std::string make_link_id() override { return make_nccl_id(); }
  void check_links() const override { NcclLibrary::get(); }
  std::unique_ptr<DeviceLink> connect(const std::string& id, int rank, int world_size) override {
    return make_cuda_link(info_.index, stream_.handle, id, rank, world_size);
  }

 private:
  // The current device belongs to a thread.
  void use() const { check_cuda(cudaSetDevice(info_.index), "choosing the device"); }

  double product_seconds(int64_t side) {
    const auto bytes = static_cast<size_t>(side * side);
    const DType dtype = compute_dtype();
    const DeviceBuffer a = allocate(bytes * dtype_size(dtype), "measuring the peak");
    const DeviceBuffer c = allocate(bytes * sizeof(float), "measuring the peak");
    const Matrix square{a.get(), side, side, side, dtype};
    double least = 1e9;
    for (int i = 0; i < 4; ++i) {
      synchronize();
      const auto begin = std::chrono::steady_clock::now();
      ops_.matmul(square, false, square, true, matrix(static_cast<float*>(c.get()), side, side),
                  1.0f, 0.0f);
      synchronize();
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
                                  .count());
    }
    return least;
  }

  CudaDeviceInfo info_;
  int units_;
  bool bf16_;
  CudaOptions::Graphs graphs_;
  Stream stream_;
  CudaOps ops_;
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// As nvidia-smi -L prints it.
std::string uuid_text(const cudaUUID_t& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

CudaDeviceInfo describe(int index, int count) {
  CudaDeviceInfo info;
  info.index = index;
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "asking a device");
  info.name = properties.name;
  info.arch = 10 * properties.major + properties.minor;
  info.memory = info.free_memory = properties.totalGlobalMem;
  info.identity = uuid_text(properties.uuid);
  for (int other = 0; other < count; ++other) {
    int reaches = 0;
    if (other != index && cudaDeviceCanAccessPeer(&reaches, index, other) == cudaSuccess &&
        reaches != 0) {
      info.peers.push_back(other);
    }
  }
  return info;
}

void say_why(cudaError_t error, CudaSystem& system) {
  if (error == cudaErrorInsufficientDriver || system.driver.empty()) {
    system.problem = system.driver.empty()
                         ? "no CUDA driver is loaded"
                         : "the driver is for CUDA " + system.driver + ", older than the CUDA " +
                               system.runtime + " of this build";
    system.remedy = "install or update the NVIDIA driver, or train with device.kind: cpu";
    return;
  }
  system.problem = error == cudaErrorNoDevice || error == cudaSuccess
                       ? "no CUDA device is visible"
                       : std::string("the driver says ") + cudaGetErrorName(error) + " (" +
                             cudaGetErrorString(error) + ")";
  system.remedy = "check nvidia-smi and CUDA_VISIBLE_DEVICES";
}

NcclInfo find_nccl() {
  try {
    const NcclLibrary& library = NcclLibrary::get();
    return {library.version(), library.path(), {}, {}};
  } catch (const Error& failure) {
    return {{}, {}, failure.message(), failure.remedy()};
  }
}

CudaSystem inspect() {
  CudaSystem system;
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) system.runtime = version_text(version);
  version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) {
    system.driver = version_text(version);
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    say_why(error, system);
    return system;
  }
  try {
    bool usable = false;
    for (int i = 0; i < count; ++i) {
      system.devices.push_back(describe(i, count));
      usable = usable || system.devices.back().arch >= kLeastArch;
    }
    if (!usable) {
      system.problem = "no device has compute capability 8.0 or newer";
      system.remedy = "train with device.kind: cpu";
    }
  } catch (const Error& failure) {
    system.problem = failure.message();
    system.remedy = failure.remedy();
  }
  return system;
}

std::unique_ptr<Device> make_device(int index, const CudaOptions& options) {
  const CudaSystem system = inspect();
  if (!system.problem.empty()) throw environment_error("cuda", system.problem, system.remedy);
  const auto count = static_cast<int>(system.devices.size());
  if (index >= count) {
    throw environment_error(
        "cuda",
        "device " + std::to_string(index) + " of " + std::to_string(count) + " does not exist",
        "start at most one rank per device of a host, or check CUDA_VISIBLE_DEVICES");
  }
  const CudaDeviceInfo& info = system.devices[static_cast<size_t>(index)];
  if (info.arch < kLeastArch) {
    throw environment_error("cuda",
                            "cuda:" + std::to_string(index) + " (" + info.name +
                                ") has compute capability " + std::to_string(info.arch / 10) + "." +
                                std::to_string(info.arch % 10) + ", 8.0 is the least",
                            "choose another with CUDA_VISIBLE_DEVICES, or device.kind: cpu");
  }
  check_cuda(cudaSetDevice(index), "choosing the device");
  int units = 0;
  check_cuda(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, index),
             "asking the device");
  return std::make_unique<CudaDevice>(info, units, options);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const CudaModule* heddle_cuda_module() {
  static const CudaModule module = {kVersion, inspect, find_nccl, make_device};
  return &module;
}

}  // namespace heddle
