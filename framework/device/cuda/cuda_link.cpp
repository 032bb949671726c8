#include "framework/device/cuda/cuda_link.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "framework/core/error.h"
#include "framework/device/cuda/cuda_error.h"
#include "framework/device/cuda/nccl_library.h"
#include "kernels/cuda/ops/ops.h"

namespace heddle {
namespace {

namespace k = kernels::cuda::ops;

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}

// Marks may be looked at while this thread records the compute stream, of which they are no part.
class Relaxed {
 public:
  Relaxed() { exchange(); }
  ~Relaxed() { exchange(); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  void exchange() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaLink : public DeviceLink {
 public:
  CudaLink(int device, cudaStream_t compute, const nccl::UniqueId& id, int rank, int world_size)
      : library_(NcclLibrary::get()),
        device_(device),
        compute_(compute),
        rank_(rank),
        world_size_(world_size) {
    check_cuda(cudaSetDevice(device_), "choosing the device");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    computed_ = make_event();
    nccl::Config config;
    library_.check(library_.api().CommInitRankConfig(&comm_, world_size, id, rank, &config),
                   "connecting the devices", nullptr);
  }
  ~CudaLink() override {
    abort();
    for (cudaEvent_t event : marks_) (void)cudaEventDestroy(event);
    (void)cudaEventDestroy(computed_);
    (void)cudaStreamDestroy(stream_);
  }
  CudaLink(const CudaLink&) = delete;
  CudaLink& operator=(const CudaLink&) = delete;

  std::string description() const override { return "NCCL " + library_.version(); }

  bool busy() override {
    const std::lock_guard lock(mutex_);
    if (finished_) return false;
    nccl::Result state = nccl::kSuccess;
    library_.check(library_.api().CommGetAsyncError(open(), &state), "asking for errors", comm_);
    library_.check(state, "talking to other ranks", comm_);
    if (state == nccl::kInProgress) return true;
    if (finishing_) {
      library_.check(library_.api().CommDestroy(comm_), "closing the connections", nullptr);
      comm_ = nullptr;
      finished_ = true;
    }
    return false;
  }

  void follow_compute() override {
    use();
    check_cuda(cudaEventRecord(computed_, compute_), "marking the compute stream");
    check_cuda(cudaStreamWaitEvent(stream_, computed_), "following the compute stream");
  }

  void exchange(std::span<const LinkMessage> sends,
                std::span<const LinkMessage> receives) override {
    const std::lock_guard lock(mutex_);
    const nccl::Api& api = library_.api();
    const nccl::Comm comm = open();
    use();
    library_.check(api.GroupStart(), "beginning a group", comm);
    for (const LinkMessage& m : receives) {
      library_.check(
          api.Recv(m.data, static_cast<size_t>(m.bytes), nccl::kInt8, m.peer, comm, stream_),
          "receiving", comm);
    }
    for (const LinkMessage& m : sends) {
      library_.check(
          api.Send(m.data, static_cast<size_t>(m.bytes), nccl::kInt8, m.peer, comm, stream_),
          "sending", comm);
    }
    library_.check(api.GroupEnd(), "sending and receiving", comm);
  }

  void sum_in_rank_order(float* own, const float* others, int64_t stride, int64_t n) override {
    use();
    check_cuda(k::sum_in_rank_order(own, others, stride, n, rank_, world_size_, stream_),
               "adding up");
  }
  void sum_in_rank_order(double* own, const double* others, int64_t stride, int64_t n) override {
    use();
    check_cuda(k::sum_in_rank_order(own, others, stride, n, rank_, world_size_, stream_),
               "adding up");
  }

  void set_mark(size_t mark) override {
    use();
    while (marks_.size() <= mark) marks_.push_back(make_event());
    check_cuda(cudaEventRecord(marks_[mark], stream_), "marking the communication stream");
  }
  bool passed(size_t mark) override {
    use();
    const Relaxed relaxed;
    const cudaError_t state = cudaEventQuery(marks_[mark]);
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "looking at the communication stream");
    return true;
  }
  void hold_compute(size_t mark) override {
    use();
    check_cuda(cudaStreamWaitEvent(compute_, marks_[mark]), "following the communication stream");
  }

  void finish() override {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    library_.check(library_.api().CommFinalize(open()), "finishing", comm_);
  }
  // A call of another thread that does not come back keeps it: then the process has to end as it
  // is.
  void abort() noexcept override {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!lock.try_lock_for(std::chrono::seconds(1)) || comm_ == nullptr) return;
    (void)library_.api().CommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  nccl::Comm open() const {
    if (comm_ == nullptr) {
      throw comm_error("the connections of the devices were cut",
                       "See what the other ranks say first; the last checkpoint can be resumed");
    }
    return comm_;
  }
  // The current device belongs to a thread.
  void use() const { check_cuda(cudaSetDevice(device_), "choosing the device"); }

  const NcclLibrary& library_;
  const int device_;
  const cudaStream_t compute_;
  const int rank_, world_size_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t computed_ = nullptr;
  std::vector<cudaEvent_t> marks_;
  std::timed_mutex mutex_;  // of the calls that use comm_
  nccl::Comm comm_ = nullptr;
  bool finishing_ = false, finished_ = false;
};

}  // namespace

std::string make_nccl_id() {
  const NcclLibrary& library = NcclLibrary::get();
  nccl::UniqueId id{};
  library.check(library.api().GetUniqueId(&id), "making an id", nullptr);
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<DeviceLink> make_cuda_link(int device, cudaStream_t compute, const std::string& id,
                                           int rank, int world_size) {
  nccl::UniqueId unique{};
  HEDDLE_CHECK(id.size() == sizeof unique.internal, "not an id of NCCL");
  std::memcpy(unique.internal, id.data(), id.size());
  return std::make_unique<CudaLink>(device, compute, unique, rank, world_size);
}

}  // namespace heddle
