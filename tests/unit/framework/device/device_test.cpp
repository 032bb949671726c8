#include "framework/device/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/cpu/cpu_isa.h"
#include "framework/device/make_device.h"

namespace heddle {
namespace {

TEST(CpuIsa, BestHereUnlessNamed) {
  const CpuIsa best = choose_cpu_isa("");
  EXPECT_TRUE(cpu_isa_runs_here(best));
  EXPECT_EQ(choose_cpu_isa("auto"), best);
  EXPECT_EQ(choose_cpu_isa("baseline"), CpuIsa::kBaseline);
  for (CpuIsa isa : {CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (cpu_isa_runs_here(isa)) {
      EXPECT_EQ(choose_cpu_isa(cpu_isa_name(isa)), isa);
      EXPECT_LE(isa, best);
    } else {
      EXPECT_THROW(choose_cpu_isa(cpu_isa_name(isa)), Error);
    }
  }
}

TEST(CpuIsa, UnknownNameListsTheKnownOnes) {
  try {
    choose_cpu_isa("neon");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    for (const char* part : {"neon", "baseline", "avx2", "avx512"}) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

TEST(CpuDevice, FollowsTheEnvironment) {
  setenv("HEDDLE_CPU_ISA", "neon", 1);
  EXPECT_THROW(make_cpu_device(), Error);
  setenv("HEDDLE_CPU_ISA", "baseline", 1);
  set_num_threads(1);
  EXPECT_EQ(make_cpu_device()->description(), "cpu (baseline, 1 thread)");
  set_num_threads(2);
  EXPECT_EQ(make_cpu_device()->description(), "cpu (baseline, 2 threads)");
  unsetenv("HEDDLE_CPU_ISA");
  set_num_threads(0);
}

TEST(CpuDevice, MemoryIsZeroedAndMoves) {
  const auto device = make_cpu_device();
  EXPECT_EQ(device->type(), DeviceType::kCpu);
  EXPECT_EQ(device->index(), 0);
  EXPECT_EQ(device->stream(), nullptr);
  const DeviceBuffer block = device->allocate(4096, "test");
  std::vector<char> host(4096, 1);
  device->download(host.data(), block.get(), 4096);
  EXPECT_EQ(host, std::vector<char>(4096, 0));
  host[17] = 5;
  device->upload(block.get(), host.data(), 4096);
  device->synchronize();
  EXPECT_EQ(static_cast<char*>(block.get())[17], 5);
  EXPECT_EQ(device->allocate(0, "nothing").get(), nullptr);
}

TEST(CpuDevice, OutOfMemoryNamesWhat) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator ends the process instead";
#endif
  const auto device = make_cpu_device();
  try {
    device->allocate(size_t{1} << 60, "the optimizer's momentum");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(e.what()).find("the optimizer's momentum"), std::string::npos);
  }
}

TEST(CpuDevice, HasNoLinks) {
  const auto device = make_cpu_device();
  EXPECT_FALSE(device->holds(device.get()));
  EXPECT_EQ(device->identity(), "");
  for (const bool checks : {true, false}) {
    try {
      if (checks) device->check_links();
      else device->connect(device->make_link_id(), 0, 2);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kEnvironment);
      EXPECT_NE(std::string(e.what()).find("no links"), std::string::npos) << e.what();
    }
  }
}

TEST(MakeDevice, ARankTakesADeviceOfItsOwn) {
  struct Case {
    int visible, local_rank, local_size, device;
  };
  for (const Case& c : {Case{8, 0, 8, 0}, {8, 7, 8, 7}, {8, 1, 2, 1}, {1, 0, 1, 0}, {4, 0, 1, 0},
                        {1, 0, 4, 0}, {1, 3, 4, 0}}) {
    EXPECT_EQ(device_of_rank(c.visible, c.local_rank, c.local_size), c.device)
        << c.visible << " visible, local rank " << c.local_rank << " of " << c.local_size;
  }
  for (const int local_rank : {0, 1, 2}) {
    try {
      device_of_rank(2, local_rank, 3);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kEnvironment);
      EXPECT_NE(std::string(e.what()).find("3 ranks on this host see 2 CUDA devices"),
                std::string::npos);
    }
  }
}

TEST(CpuDevice, PeakIsANumber) {
  const double peak = make_cpu_device()->measure_peak_flops();
  EXPECT_GT(peak, 1e7);
  EXPECT_LT(peak, 1e16);
}

}  // namespace
}  // namespace heddle
