// Runs under mpirun: mpi_communicator_test [abort | leave]. Without an argument all checks, rc 0.
#include "framework/comm/mpi/mpi_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "framework/comm/rendezvous.h"
#include "framework/comm/threads.h"
#include "framework/core/error.h"
#include "tests/distributed/communicator_checks.h"

namespace heddle {
namespace {

LaunchContext launch() {
  return resolve_launch(process_environment());
}

TEST(MpiCommunicator, AgreesWithTheLauncher) {
  const Ranks ranks = connect_ranks(DistConfig{}, launch());
  const auto& comm = ranks.comm;
  EXPECT_EQ(comm->backend(), "mpi");
  EXPECT_EQ(comm->rank(), launch().rank);
  EXPECT_EQ(comm->world_size(), launch().world_size);
  EXPECT_EQ(comm->local_rank(), launch().local_rank);
  EXPECT_EQ(comm->local_size(), launch().local_size);
  EXPECT_THAT(comm->description(), ::testing::HasSubstr("Open MPI"));
  if (ranks.rendezvous) ranks.rendezvous->leave();
}

TEST(MpiCommunicator, Collectives) {
  const auto comm = make_mpi_communicator(launch());
  testing::check_collectives(*comm);
}

TEST(MpiCommunicator, CollectivesInManySmallMessages) {
  for (const MessageLimits limits : {MessageLimits{24, 1 << 20}, MessageLimits{1 << 20, 200}}) {
    const auto comm = make_mpi_communicator(launch(), limits);
    testing::check_collectives(*comm);
  }
}

TEST(MpiCommunicator, SameBitsWithEveryChunkSize) {
  const auto counts = even_counts(100003, launch().world_size);
  std::vector<std::vector<float>> results;
  for (const int64_t scratch : {int64_t{1} << 12, int64_t{1} << 24}) {
    const auto comm = make_mpi_communicator(launch(), MessageLimits{1 << 16, scratch});
    auto x = testing::awkward_buffer<float>(comm->rank(), 100003);
    comm->reduce_scatter_sum(std::span<float>(x), counts);
    comm->all_gather(std::span<float>(x), counts);
    results.push_back(x);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(MpiCommunicator, DisagreementNamesBothViews) {
  LaunchContext wrong = launch();
  wrong.world_size += 1;
  try {
    make_mpi_communicator(wrong);
    FAIL() << "accepted a wrong world size";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kCommunication);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("of " + std::to_string(launch().world_size)));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("of " + std::to_string(wrong.world_size)));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("OMPI_COMM_WORLD_SIZE"));
  }
}

TEST(MpiCommunicator, ThreadsAreSharedOut) {
  const auto comm = make_mpi_communicator(launch());
  const ThreadBudget budget = default_threads(*comm);
  EXPECT_GE(budget.threads, 1);
  EXPECT_LE(budget.threads, budget.processors);
  // Unbound ranks of one host never use more threads than it has processors, but for one each.
  EXPECT_LE(comm->all_reduce_sum(int64_t{budget.threads}),
            std::max<int64_t>(budget.processors, comm->world_size()));
}

// What a failing rank does: the others wait in a barrier and must not wait for ever.
int abort_one_rank(Communicator& comm) {
  if (comm.rank() == comm.world_size() - 1) abort_job(6);
  comm.barrier();
  comm.barrier();
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto comm = heddle::make_mpi_communicator(heddle::launch());
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "abort") return heddle::abort_one_rank(*comm);
  if (mode == "leave") return 0;  // without finish(): a failure, whatever this rank returns
  return heddle::testing::run_tests_together(*comm);
}
