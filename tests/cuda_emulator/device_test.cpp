// The CUDA device through its module: memory, errors, precision.
#include <cuda_emulator.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/core/error.h"
#include "framework/device/cuda/cuda_module.h"
#include "tests/cuda_emulator/emulated_device.h"

namespace heddle::testing {
namespace {

std::string failure(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    return e.what();
  }
  return "no error";
}

TEST(CudaDevice, SaysWhatItIs) {
  const auto device = emulated_device("fp32");
  EXPECT_EQ(device->type(), DeviceType::kCuda);
  EXPECT_EQ(device->compute_dtype(), DType::kF32);
  EXPECT_EQ(device->arch(), 80u);
  EXPECT_NE(device->stream(), nullptr);
  EXPECT_EQ(device->description(), "cuda:0 (Emulated sm_80, sm_80, 8192 MiB, fp32)");
  EXPECT_EQ(emulated_device("auto")->compute_dtype(), DType::kBF16);
}

TEST(CudaDevice, MemoryIsZeroedAndMoves) {
  const auto device = emulated_device("fp32");
  const DeviceBuffer block = device->allocate(4096, "test");
  std::vector<char> host(4096, 1);
  device->download(host.data(), block.get(), 4096);
  EXPECT_EQ(host, std::vector<char>(4096, 0));
  host[17] = 5;
  device->upload(block.get(), host.data(), 4096);
  host.assign(4096, 0);
  device->download(host.data(), block.get(), 4096);
  EXPECT_EQ(host[17], 5);
  EXPECT_EQ(device->allocate(0, "nothing").get(), nullptr);
}

TEST(CudaDevice, OutOfMemoryNamesWhatAndHowMuch) {
  const auto device = emulated_device("fp32");
  const std::string text =
      failure([&] { device->allocate(size_t{1} << 40, "the optimizer's momentum"); });
  for (const char* part : {"the optimizer's momentum", "1048576 MiB", "8192 MiB", "heddle plan"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  device->allocate(64, "a later one");  // the error is gone
}

TEST(CudaDevice, WhatStandsInItsWayIsOneClearError) {
  emulated_device("fp32");  // the module is loaded
  emulator::inject_error(cudaErrorNoDevice, 0);
  EXPECT_NE(failure([] { emulated_device("fp32"); }).find("no CUDA device is visible"),
            std::string::npos);
  emulator::inject_error(cudaErrorInsufficientDriver, 0);
  EXPECT_NE(failure([] { emulated_device("fp32"); }).find("the driver is for CUDA"),
            std::string::npos);
  // auto goes on with the CPU, and says why.
  emulator::inject_error(cudaErrorNoDevice, 0);
  std::string note;
  EXPECT_EQ(make_device({}, 0, 1, &note)->type(), DeviceType::kCpu);
  EXPECT_EQ(note, "no CUDA device is visible");
  emulator::inject_error(cudaErrorNoDevice, 0);
  EXPECT_NE(failure([] { make_device({.kind = "auto", .precision = "bf16"}); }).find("bf16"),
            std::string::npos);
  EXPECT_EQ(make_device({.kind = "cpu"})->type(), DeviceType::kCpu);
  // One visible device is this rank's, whatever its number among the ranks of the host.
  EXPECT_EQ(make_device({.kind = "cuda"}, 3, 4)->index(), 0);
}

TEST(CudaDevice, AFaultOfAKernelIsAnErrorWithItsPlace) {
  const auto device = emulated_device("fp32");
  const DeviceBuffer x = device->allocate(64, "x");
  auto* beyond = static_cast<float*>(x.get()) + 16;
  EXPECT_NE(failure([&] { device->ops().relu2_forward(beyond, 4); }).find("at offset 64 of an allocation of 64 bytes"),
            std::string::npos);
}

TEST(CudaDevice, PeakIsANumber) {
  const double peak = emulated_device("auto")->measure_peak_flops();
  EXPECT_GT(peak, 1e6);
  EXPECT_LT(peak, 1e16);
}

}  // namespace
}  // namespace heddle::testing
