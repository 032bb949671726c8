// The part of the CUDA runtime that Heddle uses, on the host. Shadows the toolkit's header.
#pragma once

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "cuda_emulator.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

// ---- types ----

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorIllegalAddress = 700,
  cudaErrorNotReady = 600,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventDefault = 0;

using uint3 = heddle::emulator::Index3;
struct dim3 : uint3 {
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : uint3{vx, vy, vz} {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, clockRate, warpSize;
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered,
  cudaMemoryTypeHost,
  cudaMemoryTypeDevice,
  cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
struct cudaLaunchAttribute {
  int id;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

// ---- host functions ----

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDeviceCanAccessPeer(int* reaches, int device, int peer);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

cudaError_t heddle_emulated_malloc(void** pointer, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return heddle_emulated_malloc(reinterpret_cast<void**>(pointer), bytes);
}
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
// What a capturing stream gets is recorded and not done; what waits or allocates meanwhile is
// refused and spoils the capture.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorInvalidValue;
  heddle::emulator::allow_shared_bytes(reinterpret_cast<const void*>(kernel),
                                       static_cast<size_t>(value));
  return cudaSuccess;
}

cudaError_t heddle_emulated_launch(const heddle::emulator::Launch& launch, cudaStream_t stream);

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... arguments) {
  struct Bound {
    void (*kernel)(P...);
    std::tuple<std::remove_cv_t<P>...> values;
  };
  Bound bound{kernel, {std::forward<A>(arguments)...}};
  heddle::emulator::Launch launch;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.arguments = &bound;
  launch.argument_bytes = sizeof bound;
  launch.invoke = [](void* p) {
    auto& b = *static_cast<Bound*>(p);
    std::apply([&b](const auto&... v) { b.kernel(v...); }, b.values);
  };
  launch.grid = config->gridDim;
  launch.block = config->blockDim;
  launch.shared_bytes = config->dynamicSmemBytes;
  return heddle_emulated_launch(launch, config->stream);
}

// ---- device functions ----

// threadIdx.x and the like: no macros, since cudaLaunchConfig_t has members of these names.
template <heddle::emulator::Index3 (*kAsk)()>
struct HeddleBuiltin {
  template <unsigned heddle::emulator::Index3::*kMember>
  struct Component {
    operator unsigned() const { return kAsk().*kMember; }
  };
  Component<&heddle::emulator::Index3::x> x;
  Component<&heddle::emulator::Index3::y> y;
  Component<&heddle::emulator::Index3::z> z;
};
inline constexpr HeddleBuiltin<heddle::emulator::thread_index> threadIdx{};
inline constexpr HeddleBuiltin<heddle::emulator::block_index> blockIdx{};
inline constexpr HeddleBuiltin<heddle::emulator::block_size> blockDim{};
inline constexpr HeddleBuiltin<heddle::emulator::grid_size> gridDim{};

#define HEDDLE_HERE ::heddle::emulator::Location where = ::heddle::emulator::Location::current()

inline void __syncthreads(HEDDLE_HERE) {
  ::heddle::emulator::barrier(0, 0, where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, HEDDLE_HERE) {
  ::heddle::emulator::sync_warp(mask, where);
}
inline void __threadfence() {}

namespace heddle::emulator {
inline unsigned lane_index() {
  const Index3 t = thread_index(), n = block_size();
  return (t.x + n.x * (t.y + n.y * t.z)) % 32;
}
template <class T>
T shuffle_value(uint32_t mask, T value, unsigned source, Location where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(mask, bits, source, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
}  // namespace heddle::emulator

// Lanes beyond the group of `width` keep their own value, as on the device.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, HEDDLE_HERE) {
  const unsigned lane = ::heddle::emulator::lane_index(), w = static_cast<unsigned>(width);
  const unsigned from = (lane & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1));
  return ::heddle::emulator::shuffle_value(mask, value, from, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, HEDDLE_HERE) {
  const unsigned lane = ::heddle::emulator::lane_index(), w = static_cast<unsigned>(width);
  const unsigned from = lane ^ static_cast<unsigned>(lanes);
  return ::heddle::emulator::shuffle_value(mask, value, from / w == lane / w ? from : lane, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, HEDDLE_HERE) {
  const unsigned lane = ::heddle::emulator::lane_index(), w = static_cast<unsigned>(width);
  const unsigned from = lane + delta;
  return ::heddle::emulator::shuffle_value(mask, value, from / w == lane / w ? from : lane, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, HEDDLE_HERE) {
  return ::heddle::emulator::ballot(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, HEDDLE_HERE) {
  return ::heddle::emulator::ballot(mask, predicate != 0, where) != 0;
}

inline float atomicAdd(float* address, float value, HEDDLE_HERE) {
  return ::heddle::emulator::atomic_add(address, value, where);
}
inline int atomicAdd(int* address, int value, HEDDLE_HERE) {
  return ::heddle::emulator::atomic_add(address, value, where);
}
inline unsigned atomicAdd(unsigned* address, unsigned value, HEDDLE_HERE) {
  return ::heddle::emulator::atomic_add(address, value, where);
}
inline int atomicMax(int* address, int value, HEDDLE_HERE) {
  return ::heddle::emulator::atomic_max(address, value, where);
}
