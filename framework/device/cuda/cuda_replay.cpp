#include "framework/device/cuda/cuda_replay.h"

#include "framework/core/log.h"
#include "framework/device/cuda/cuda_error.h"

namespace heddle {

CudaReplay::~CudaReplay() {
  forget();
}

void CudaReplay::forget() {
  if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
  graph_ = nullptr;
}

void CudaReplay::run(const std::function<void()>& body) {
  if (refused_) return body();
  if (!warm_) {
    body();
    warm_ = true;
    return;
  }
  if (graph_ == nullptr || growths_ != ops_.growths()) {
    try {
      capture(body);
    } catch (const Error& e) {
      if (required_) throw;
      log::warn("no CUDA graph, operations are enqueued one by one: {}", e.message());
      refused_ = true;
      return body();
    }
  }
  check_cuda(cudaGraphLaunch(graph_, stream_), "launching a graph");
  ops_.forget_weights();  // the graph may have changed them
}

void CudaReplay::capture(const std::function<void()>& body) {
  forget();
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
             "beginning a capture");
  cudaGraph_t recorded = nullptr;
  // What was refused while recording is named by the call that was refused, not by the end.
  std::exception_ptr refusal;
  try {
    body();
  } catch (...) {
    refusal = std::current_exception();
  }
  const cudaError_t ended = cudaStreamEndCapture(stream_, &recorded);
  cudaError_t made = cudaSuccess;
  if (!refusal && ended == cudaSuccess) made = cudaGraphInstantiate(&graph_, recorded, 0);
  if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
  if (refusal || ended != cudaSuccess) (void)cudaGetLastError();
  if (refusal) std::rethrow_exception(refusal);
  check_cuda(ended, "ending a capture");
  check_cuda(made, "making a graph");
  growths_ = ops_.growths();
}

}  // namespace heddle
