// Runs under heddle launch or torchrun: gloo_communicator_test [abort | frozen | meet]; under
// mpirun: gloo_communicator_test bits. Exit code 0 when all checks pass, 6 where a rank fails.
#include "framework/comm/gloo/gloo_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "framework/comm/mpi/mpi_communicator.h"
#include "framework/core/error.h"
#include "tests/distributed/communicator_checks.h"

namespace heddle {
namespace {

LaunchContext launch() {
  return resolve_launch(process_environment());
}

std::shared_ptr<Rendezvous> rendezvous;

TEST(GlooCommunicator, IsWhatAutoMeansWithoutMpi) {
  EXPECT_FALSE(launch().pmi);
  const auto comm = make_gloo_communicator(rendezvous, launch());
  EXPECT_EQ(comm->backend(), "gloo");
  EXPECT_EQ(comm->rank(), launch().rank);
  EXPECT_EQ(comm->world_size(), launch().world_size);
  EXPECT_THAT(comm->description(), ::testing::HasSubstr("TCP from " + rendezvous->own_address()));
  comm->barrier();
}

TEST(GlooCommunicator, Collectives) {
  const auto comm = make_gloo_communicator(rendezvous, launch());
  testing::check_collectives(*comm);
}

TEST(GlooCommunicator, CollectivesInManySmallMessages) {
  for (const MessageLimits limits : {MessageLimits{1200, 1 << 20}, MessageLimits{1 << 20, 12000}}) {
    const auto comm = make_gloo_communicator(rendezvous, launch(), nullptr, limits);
    testing::check_collectives(*comm);
  }
}

// Several operations under way, polled now and then, as a training step does.
TEST(GlooCommunicator, OverlappedOperations) {
  const auto comm = make_gloo_communicator(rendezvous, launch());
  const int world = comm->world_size();
  const auto counts = even_counts(50021, world);
  std::vector<std::vector<float>> buffers;
  for (int i = 0; i < 8; ++i)
    buffers.push_back(testing::awkward_buffer<float>(comm->rank(), 50021));
  std::vector<Work> work;
  for (auto& x : buffers) {
    work.push_back(comm->start_reduce_scatter_sum(std::span<float>(x), counts));
    comm->poll();
  }
  for (auto& x : buffers) work.push_back(comm->start_all_gather(std::span<float>(x), counts));
  while (comm->poll()) usleep(100);
  for (Work& w : work) w.wait();
  for (const auto& x : buffers) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < 50021; ++i) {
      wrong += x[i] != testing::rank_order_sum<float>(world, i);
    }
    EXPECT_EQ(wrong, 0);
  }
  comm->barrier();
}

TEST(GlooCommunicator, StoreIsShared) {
  rendezvous->store().add("count", 1);
  const auto comm = make_gloo_communicator(rendezvous, launch());
  comm->barrier();
  EXPECT_EQ(rendezvous->store().get("count"), std::to_string(comm->world_size()));
  comm->barrier();
}

// The last rank ends, or freezes until the others have given up on it.
int abort_one_rank(Communicator& comm, bool freeze) {
  if (comm.rank() == comm.world_size() - 1) {
    if (!freeze) abort_job(6);
    raise(SIGSTOP);
  }
  for (int i = 0; i < 3; ++i) comm.barrier();
  return 0;
}

// The same sums over both backends.
int compare_with_mpi() {
  DistConfig config;
  config.backend = "gloo";
  Ranks gloo = connect_ranks(config, launch());
  const auto mpi = make_mpi_communicator(launch());
  int64_t wrong = 0;
  for (const int64_t n : {1, 1000, 300007}) {
    for (const auto& counts : {even_counts(n, mpi->world_size())}) {
      auto x = testing::awkward_buffer<float>(mpi->rank(), n);
      auto y = x;
      mpi->reduce_scatter_sum(std::span<float>(x), counts);
      gloo.comm->reduce_scatter_sum(std::span<float>(y), counts);
      wrong += x != y;
      mpi->all_reduce_sum(std::span<float>(x));
      gloo.comm->all_reduce_sum(std::span<float>(y));
      wrong += x != y;
    }
  }
  wrong = mpi->all_reduce_sum(wrong);
  if (mpi->rank() == 0) std::printf("%lld results differ\n", static_cast<long long>(wrong));
  gloo.comm->finish();
  return wrong != 0;
}

}  // namespace
}  // namespace heddle

namespace heddle {
namespace {

int run(const std::string& mode) {
  if (mode == "bits") return compare_with_mpi();
  DistConfig config;
  config.timeout_s = mode == "frozen" ? 2.0 : mode == "meet" ? 10.0 : 60.0;
  rendezvous = meet(config, launch());
  const auto comm = make_gloo_communicator(rendezvous, launch());
  if (mode == "abort" || mode == "frozen") return abort_one_rank(*comm, mode == "frozen");
  return testing::run_tests_together(*comm);
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::testing::main_of_rank(argc, argv, heddle::run);
}
