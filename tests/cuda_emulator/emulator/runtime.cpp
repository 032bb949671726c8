// cuda* functions. Work is over when the call that enqueues it returns, unless something that takes
// its time (a library's, see enqueue_external) comes before it on its stream.
#include "cuda_runtime.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "internal.h"
#include "streams.h"

namespace heddle::emulator {
namespace {

std::recursive_mutex& mutex() {
  static auto& m = *new std::recursive_mutex;
  return m;
}
#define HEDDLE_LOCKED const std::lock_guard heddle_lock(mutex())

cudaError_t last_error = cudaSuccess;
std::map<const void*, size_t> shared_limits;
thread_local int current_device = 0;

// HEDDLE_EMULATED_DEVICES, 1 without it, of which CUDA_VISIBLE_DEVICES shows some. All have the
// memory of the process: it is their numbers that differ.
std::vector<int> visible_devices() {
  const char* count = std::getenv("HEDDLE_EMULATED_DEVICES");
  const int present = count != nullptr ? std::atoi(count) : 1;
  std::vector<int> devices;
  const char* shown = std::getenv("CUDA_VISIBLE_DEVICES");
  if (shown == nullptr) {
    for (int i = 0; i < present; ++i) devices.push_back(i);
    return devices;
  }
  // As the driver does: up to the first that is none.
  for (const char* at = shown; *at != '\0';) {
    char* end = nullptr;
    const long index = std::strtol(at, &end, 10);
    if (end == at || index < 0 || index >= present) break;
    devices.push_back(static_cast<int>(index));
    at = *end == ',' ? end + 1 : end;
  }
  return devices;
}
bool device_exists(int device) {
  return device >= 0 && device < static_cast<int>(visible_devices().size());
}
int injected_error = 0;
int64_t injected_after = 0;

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// What an injected error does to this call.
cudaError_t may_fail() {
  if (injected_error == 0) return cudaSuccess;
  if (injected_after-- > 0) return cudaSuccess;
  return note(static_cast<cudaError_t>(std::exchange(injected_error, 0)));
}

// The stream that this thread captures.
thread_local cudaStream_t capturing = nullptr;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// What cannot be a part of a graph spoils a capture.
cudaError_t refuse_in_capture() {
  if (!capturing) return cudaSuccess;
  capturing->spoilt = true;
  return note(cudaErrorStreamCaptureUnsupported);
}

bool in_bounds(const void* p, size_t bytes) {
  Machine& m = machine();
  return !m.device.contains(p) || m.device.outside(p, bytes).empty();
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = may_fail()) return error;
  const DeviceMemory& device = machine().device;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool wrong = kind != cudaMemcpyDefault && !machine().host_memory_allowed && bytes > 0 &&
                     (device.contains(to) != to_device || device.contains(from) != from_device);
  if (wrong || !in_bounds(to, bytes) || !in_bounds(from, bytes)) return note(cudaErrorInvalidValue);
  if (bytes > 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t fill(void* to, int byte, size_t bytes) {
  if (const cudaError_t error = may_fail()) return error;
  const bool ours = machine().device.contains(to) || machine().host_memory_allowed;
  if ((bytes > 0 && !ours) || !in_bounds(to, bytes)) return note(cudaErrorInvalidValue);
  if (bytes > 0) std::memset(to, byte, bytes);
  return cudaSuccess;
}

// Gives other threads the machine meanwhile.
template <class Done>
void sleep_until(Done done) {
  for (;; ::usleep(100)) {
    HEDDLE_LOCKED;
    streams().advance();
    if (done()) return;
  }
}

template <class Done>
cudaError_t wait_until(Done done) {
  {
    HEDDLE_LOCKED;
    if (const cudaError_t error = refuse_in_capture()) return error;
    ++machine().counters.synchronisations;
    if (const cudaError_t error = may_fail()) return error;
  }
  sleep_until(done);
  HEDDLE_LOCKED;
  return note(static_cast<cudaError_t>(streams().take_error()));
}

}  // namespace

int enqueue(cudaStream_t stream, Work work) {
  HEDDLE_LOCKED;
  if (stream && stream->captured) {
    if (stream->spoilt) return note(cudaErrorStreamCaptureInvalidated);
    stream->captured->work.push_back(std::move(work));
    return cudaSuccess;
  }
  ++machine().counters.enqueued;
  if (streams().idle(stream)) return work();
  // An error of what is put off comes out at the next wait, as on a device.
  streams().push(stream, [work = std::move(work)] {
    streams().note_error(work());
    return true;
  });
  return cudaSuccess;
}

void enqueue_external(void* stream, std::function<bool()> step) {
  HEDDLE_LOCKED;
  streams().push(static_cast<cudaStream_t>(stream), std::move(step));
}

int run(const Launch& launch) {
  const Index3 g = launch.grid, b = launch.block;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  const bool empty = uint64_t{g.x} * g.y * g.z == 0 || threads == 0;
  if (empty || threads > kMostThreads || b.z > 64 || g.x > 0x7fffffffu || g.y > 65535 ||
      g.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const auto limit = shared_limits.find(launch.kernel);
  if (launch.shared_bytes > (limit == shared_limits.end() ? kPlainSharedBytes : limit->second)) {
    return cudaErrorInvalidValue;
  }
  return machine().run(launch);
}

void allow_shared_bytes(const void* kernel, size_t bytes) {
  HEDDLE_LOCKED;
  if (bytes <= kMostSharedBytes) shared_limits[kernel] = bytes;
}
Counters counters() {
  HEDDLE_LOCKED;
  return machine().counters;
}
void reset_counters() {
  HEDDLE_LOCKED;
  machine().counters = {};
}
void set_schedule(uint64_t seed) {
  HEDDLE_LOCKED;
  machine().seed = seed;
}
void allow_host_memory(bool allowed) {
  HEDDLE_LOCKED;
  machine().host_memory_allowed = allowed;
}
void inject_error(int error, int64_t calls) {
  HEDDLE_LOCKED;
  injected_error = error;
  injected_after = calls;
}

}  // namespace heddle::emulator

using namespace heddle::emulator;  // NOLINT: this file is the other side of a C interface

cudaError_t heddle_emulated_launch(const Launch& launch, cudaStream_t stream) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = may_fail()) return error;
  if (stream && !stream->alive) return note(cudaErrorInvalidResourceHandle);
  // A graph keeps the arguments.
  const auto units =
      (launch.argument_bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  const auto arguments = std::make_shared<std::vector<std::max_align_t>>(units);
  std::memcpy(arguments->data(), launch.arguments, launch.argument_bytes);
  Launch kept = launch;
  kept.arguments = arguments->data();
  return note(static_cast<cudaError_t>(enqueue(stream, [kept, arguments] { return run(kept); })));
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
  }
  return "unknown error";
}
// After a launch that failed: what the kernel did.
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  HEDDLE_LOCKED;
  const auto& fault = machine().fault;
  text = error == cudaErrorLaunchFailure && fault ? fault->text() : cudaGetErrorName(error);
  return text.c_str();
}
cudaError_t cudaGetLastError() {
  HEDDLE_LOCKED;
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  HEDDLE_LOCKED;
  return last_error;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  HEDDLE_LOCKED;
  *count = 0;
  if (const cudaError_t error = may_fail()) return error;
  *count = static_cast<int>(visible_devices().size());
  return *count > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}
cudaError_t cudaDeviceCanAccessPeer(int* reaches, int device, int peer) {
  if (!device_exists(device) || !device_exists(peer)) return note(cudaErrorInvalidDevice);
  *reaches = device != peer;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!device_exists(device)) return note(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return wait_until([] { return streams().idle(); });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!device_exists(device)) return note(cudaErrorInvalidDevice);
  *properties = {"Emulated sm_80", {}, machine().device.capacity(), kMostSharedBytes, 8, 0, 108,
                 1410000, 32};
  properties->uuid.bytes[0] = static_cast<char>(0xe5);
  properties->uuid.bytes[15] = static_cast<char>(visible_devices()[static_cast<size_t>(device)]);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!device_exists(device)) return note(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(kMostSharedBytes); break;
    case cudaDevAttrMultiProcessorCount: *value = 108; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  }
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  HEDDLE_LOCKED;
  const bool ours = machine().device.contains(pointer) && in_bounds(pointer, 1);
  *attributes = {ours ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, current_device};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  HEDDLE_LOCKED;
  *total = machine().device.capacity();
  *free = *total - machine().device.used();
  return cudaSuccess;
}

cudaError_t heddle_emulated_malloc(void** pointer, size_t bytes) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = refuse_in_capture()) return error;
  ++machine().counters.allocations;
  if (const cudaError_t error = may_fail()) return error;
  *pointer = bytes == 0 ? nullptr : machine().device.allocate(bytes);
  return *pointer || bytes == 0 ? cudaSuccess : note(cudaErrorMemoryAllocation);
}
// Waits for what may still use the memory.
cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = refuse_in_capture()) return error;
  sleep_until([] { return streams().idle(); });
  HEDDLE_LOCKED;
  return machine().device.release(pointer) ? cudaSuccess : note(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  return *pointer ? cudaSuccess : note(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = refuse_in_capture()) return error;
  ++machine().counters.synchronisations;
  return copy(to, from, bytes, kind);
}
// A graph would read and write the host's memory at a later time than its caller thinks. That memory
// is pageable: what goes to the device is read now, what comes from it is waited for.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  {
    HEDDLE_LOCKED;
    const bool captured = stream && stream->captured;
    if (kind != cudaMemcpyDeviceToDevice && captured) return refuse_in_capture();
  }
  if (kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyHostToDevice) {
    sleep_until([=] { return streams().idle(stream); });
  }
  HEDDLE_LOCKED;
  std::shared_ptr<std::vector<std::byte>> staged;
  if (kind == cudaMemcpyHostToDevice && !streams().idle(stream)) {
    const auto* source = static_cast<const std::byte*>(from);
    staged = std::make_shared<std::vector<std::byte>>(source, source + bytes);
  }
  return static_cast<cudaError_t>(enqueue(
      stream, [=] { return copy(to, staged ? staged->data() : from, bytes, kind); }));
}
cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = refuse_in_capture()) return error;
  return fill(to, byte, bytes);
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  HEDDLE_LOCKED;
  return static_cast<cudaError_t>(enqueue(stream, [=] { return fill(to, byte, bytes); }));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  HEDDLE_LOCKED;
  *stream = streams().make();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream || !stream->alive) return note(cudaErrorInvalidResourceHandle);
  stream->alive = false;  // never reused: a later use is seen
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return wait_until([=] { return streams().idle(stream); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  HEDDLE_LOCKED;
  return streams().idle(stream) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  HEDDLE_LOCKED;
  if (!event) return note(cudaErrorInvalidResourceHandle);
  if (!event->done->load()) streams().push(stream, [done = event->done] { return done->load(); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = may_fail()) return error;
  event->recorded = machine().counters.launches;
  event->done = std::make_shared<std::atomic<bool>>(streams().idle(stream));
  if (event->done->load()) return cudaSuccess;
  streams().push(stream, [done = event->done] {
    done->store(true);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return wait_until([done = event->done] { return done->load(); });
}
// Of an event that is no part of a capture.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  HEDDLE_LOCKED;
  if (capture_mode != cudaStreamCaptureModeRelaxed) {
    if (const cudaError_t error = refuse_in_capture()) return error;
  }
  streams().advance();
  return event->done->load() ? cudaSuccess : cudaErrorNotReady;
}
// A model of time that only grows with work: one microsecond per launch.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = 1e-3f * static_cast<float>(end->recorded - start->recorded);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  HEDDLE_LOCKED;
  if (!stream || stream->captured || capturing) return note(cudaErrorInvalidValue);
  stream->captured = std::make_unique<CUgraph_st>();
  stream->spoilt = false;
  capturing = stream;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  HEDDLE_LOCKED;
  *graph = nullptr;
  if (!stream || capturing != stream) return note(cudaErrorInvalidValue);
  capturing = nullptr;
  const std::unique_ptr<CUgraph_st> captured = std::move(stream->captured);
  if (stream->spoilt) return note(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st(*captured);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = may_fail()) return error;
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  HEDDLE_LOCKED;
  if (const cudaError_t error = may_fail()) return error;
  if (!exec || (stream && stream->captured)) return note(cudaErrorInvalidValue);
  ++machine().counters.graphs;
  return static_cast<cudaError_t>(enqueue(stream, [exec]() -> int {
    for (const Work& work : exec->work) {
      if (const int error = work()) return note(static_cast<cudaError_t>(error));
    }
    return cudaSuccess;
  }));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
