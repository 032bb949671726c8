// What tests/unit/framework/device/support.h needs to run its tests on the emulated device, whose
// kernels may touch the tests' own memory here.
#pragma once

#include <cuda_emulator.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "framework/core/rng.h"
#include "framework/device/cuda/cuda_ops.h"

namespace heddle::testing {

inline std::vector<float> noise(int64_t n, const std::string& stream, float scale = 1.0f) {
  Rng rng(7, stream);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = scale * rng.normal();
  return x;
}

inline cudaStream_t test_stream() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    throw std::runtime_error("no stream");
  }
  return stream;
}

// The parameter is the order in which blocks, warps and lanes run.
class OpsTest : public ::testing::TestWithParam<int> {
 protected:
  OpsTest() {
    emulator::set_schedule(static_cast<uint64_t>(GetParam()));
    emulator::allow_host_memory(true);
  }
  ~OpsTest() override {
    emulator::set_schedule(0);
    emulator::allow_host_memory(false);
  }
  void settle() { ops_.settle(); }
  CudaOps ops_{test_stream(), false, 1 << 16};
};

}  // namespace heddle::testing

#define HEDDLE_ON_EVERY_TABLE(suite) \
  INSTANTIATE_TEST_SUITE_P(Emulated, suite, ::testing::Values(0, 5))
