// The nccl backend on emulated devices, through the double of its library. Runs under heddle
// launch:
//   cuda_nccl_communicator_test [late | gone | MODE], where any other MODE calls for an error
// Exit code 0 when all checks pass, that of the error where there is one.
#include "framework/comm/nccl/nccl_communicator.h"

#include <cuda_emulator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "framework/core/error.h"
#include "framework/device/make_device.h"
#include "tests/distributed/communicator_checks.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;

LaunchContext launch() {
  return resolve_launch(process_environment());
}

class DeviceMemory : public testing::CheckMemory {
 public:
  explicit DeviceMemory(Device& device) : device_(device) {}
  std::shared_ptr<void> allocate(size_t bytes) override { return device_.allocate(bytes, "test"); }
  void write(void* to, const void* from, size_t bytes) override { device_.upload(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override {
    device_.download(to, from, bytes);
  }
  void settle() override { device_.synchronize(); }

 private:
  Device& device_;
};

std::unique_ptr<Communicator> shared;
std::unique_ptr<Device> device;
std::shared_ptr<Rendezvous> rendezvous;

TEST(NcclCommunicator, SaysWhatItIs) {
  EXPECT_EQ(shared->backend(), "nccl");
  EXPECT_EQ(shared->rank(), launch().rank);
  EXPECT_THAT(shared->description(), HasSubstr("NCCL 2.28.9"));
  EXPECT_THAT(shared->description(), HasSubstr(device->identity()));
  EXPECT_THAT(shared->description(), HasSubstr("gloo"));
}

TEST(NcclCommunicator, CollectivesOfTheDevice) {
  DeviceMemory memory(*device);
  testing::check_collectives_in(memory, *shared);
}

TEST(NcclCommunicator, CollectivesOfTheHost) {
  testing::check_collectives(*shared);
}

// Nothing waits between the start of an operation and the moment at which its result is read.
TEST(NcclCommunicator, TheHostDoesNotWait) {
  DeviceMemory memory(*device);
  constexpr int64_t kElements = 5003;
  const testing::CheckBuffer<float> x(memory,
                                      testing::awkward_buffer<float>(shared->rank(), kElements));
  device->synchronize();
  emulator::reset_counters();
  const auto counts = even_counts(kElements, shared->world_size());
  Work work = shared->start_reduce_scatter_sum(x.span(), counts);
  work = shared->start_all_gather(x.span(), counts);
  work.wait();
  device->ops().add(x.span().data(), x.span().data(), kElements);  // behind both
  EXPECT_EQ(emulator::counters().synchronisations, 0);
  EXPECT_EQ(emulator::counters().allocations, 0);
  const std::vector<float> got = x.values();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    const auto sum = testing::rank_order_sum<float>(shared->world_size(), i);
    wrong += got[static_cast<size_t>(i)] != sum + sum;
  }
  EXPECT_EQ(wrong, 0);
}

// What the compute stream is still to do when an operation is started belongs to its input.
TEST(NcclCommunicator, FollowsTheComputeStream) {
  DeviceMemory memory(*device);
  constexpr int64_t kElements = 2000;
  const testing::CheckBuffer<float> x(memory,
                                      testing::awkward_buffer<float>(shared->rank(), kElements));
  const auto counts = even_counts(kElements, shared->world_size());
  shared->start_all_gather(x.span(), counts).wait();               // the compute stream waits,
  device->ops().add(x.span().data(), x.span().data(), kElements);  // doubles,
  shared->start_reduce_scatter_sum(x.span(), counts).wait();       // and that is summed
  const std::vector<float> got = x.values();
  int64_t begin = 0, wrong = 0;
  for (int r = 0; r < shared->rank(); ++r) begin += counts[static_cast<size_t>(r)];
  for (int64_t i = begin; i < begin + counts[static_cast<size_t>(shared->rank())]; ++i) {
    // Every rank has the value of this one here, twice.
    float sum = 0;
    for (int r = 0; r < shared->world_size(); ++r) {
      sum += 2 * testing::awkward<float>(shared->rank(), i);
    }
    wrong += got[static_cast<size_t>(i)] != sum;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(NcclCommunicator, CountsBytesAsTheOthersDo) {
  DeviceMemory memory(*device);
  const int64_t world = shared->world_size(), n = 1000;
  const auto counts = even_counts(n, static_cast<int>(world));
  const int64_t own = counts[static_cast<size_t>(shared->rank())];
  const testing::CheckBuffer<float> x(memory, std::vector<float>(n, 1.0f));
  const int64_t before = shared->counters().bytes_sent;
  shared->reduce_scatter_sum(x.span(), counts);
  EXPECT_EQ(shared->counters().bytes_sent - before, 4 * (n - own));
  shared->all_gather(x.span(), counts);
  EXPECT_EQ(shared->counters().bytes_sent - before, 4 * (n - own) + 4 * (world - 1) * own);
  device->synchronize();
  EXPECT_FALSE(shared->poll());
  EXPECT_GT(shared->counters().seconds_in_flight, 0);
}

// Barriers with device work between them, of which the last rank drops out.
void meet_until_the_last_is_late(bool gone) {
  DeviceMemory memory(*device);
  const testing::CheckBuffer<float> x(memory, std::vector<float>(100, 1.0f));
  for (int i = 0; i < 3; ++i) {
    if (i == 2 && shared->rank() == shared->world_size() - 1) {
      if (gone) _exit(9);
      for (;;) sleep(1);
    }
    shared->all_reduce_sum(x.span());
    device->synchronize();
  }
}

int run(const std::string& mode) {
  DistConfig config;
  config.timeout_s = mode == "late" || mode == "missing" ? 2.0 : 60.0;
  Ranks ranks = connect_ranks(config, launch());
  rendezvous = ranks.rendezvous;
  device = make_device({.kind = "cuda"}, ranks.comm->local_rank(), ranks.comm->local_size());
  // Sums of some lists come in one round, those of others in several.
  const int64_t scratch = mode == "rounds" ? 999 : kNcclScratchBytes;
  shared = make_nccl_communicator(std::move(ranks.comm), rendezvous, *device, scratch);
  if (mode == "late" || mode == "gone" || mode == "error") {
    meet_until_the_last_is_late(mode == "gone");
    return 1;  // nothing went wrong, and it should have
  }
  const int failed = testing::run_tests_together(*shared);
  shared.reset();
  device.reset();
  return failed;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::testing::main_of_rank(argc, argv, heddle::run);
}
