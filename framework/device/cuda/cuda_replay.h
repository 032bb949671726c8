// Work that a stream gets again and again, as a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include "framework/device/cuda/cuda_ops.h"
#include "framework/device/device.h"

namespace heddle {

// The first run() enqueues, so that scratch grows and products are chosen; the second one captures
// the stream; from then on one launch does all of it. Captured again when scratch has moved since.
// What does not let itself be captured (a plugin that waits or allocates) is enqueued as before,
// after a warning, or, if `required`, is a heddle::Error (environment).
class CudaReplay final : public Replay {
 public:
  CudaReplay(cudaStream_t stream, CudaOps& ops, bool required)
      : stream_(stream), ops_(ops), required_(required) {}
  ~CudaReplay() override;
  CudaReplay(const CudaReplay&) = delete;
  CudaReplay& operator=(const CudaReplay&) = delete;
  void run(const std::function<void()>& body) override;

 private:
  void capture(const std::function<void()>& body);
  void forget();

  cudaStream_t stream_;
  CudaOps& ops_;
  bool required_;
  bool warm_ = false, refused_ = false;
  cudaGraphExec_t graph_ = nullptr;
  int64_t growths_ = 0;  // of ops_ at the capture
};

}  // namespace heddle
