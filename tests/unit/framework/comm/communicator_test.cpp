#include "framework/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/comm/gloo/gloo_communicator.h"
#include "framework/comm/mpi/mpi_communicator.h"
#include "framework/comm/rendezvous.h"
#include "framework/core/error.h"
#include "tests/distributed/communicator_checks.h"

namespace heddle {
namespace {

using ::testing::HasSubstr;

LaunchContext launched(Launcher launcher, int world_size) {
  LaunchContext context;
  context.launcher = launcher;
  context.world_size = world_size;
  context.origin.world_size = "WORLD_SIZE";
  return context;
}

void expect_refused(const std::string& backend, const LaunchContext& launch,
                    const std::string& part) {
  try {
    connect_ranks(DistConfig{backend}, launch);
    ADD_FAILURE() << backend << " accepted " << launch.description();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kCommunication);
    EXPECT_FALSE(e.remedy().empty());
    EXPECT_THAT(e.what(), HasSubstr(part));
  }
}

TEST(Communicator, AloneIsSelf) {
  for (const char* backend : {"auto", "self"}) {
    const auto comm = connect_ranks(DistConfig{backend}, LaunchContext{}).comm;
    EXPECT_EQ(comm->backend(), "self");
    EXPECT_EQ(comm->rank(), 0);
    EXPECT_EQ(comm->world_size(), 1);
  }
}

TEST(Communicator, SelfCollectives) {
  const auto comm = connect_ranks(DistConfig{}, LaunchContext{}).comm;
  testing::check_collectives(*comm);
  comm->finish();
}

TEST(Communicator, ManyProcessesAreNeverManyCopies) {
  const std::string part = gloo_available() ? "Nothing says where rank 0 is" : "mpirun -n";
  expect_refused("auto", launched(Launcher::kTorchrun, 2), part);
  expect_refused("auto", launched(Launcher::kEnvironment, 4), part);
  expect_refused("mpi", launched(Launcher::kTorchrun, 2), "torchrun");
  for (const Launcher launcher : {Launcher::kTorchrun, Launcher::kOpenMpi, Launcher::kSrun}) {
    expect_refused("self", launched(launcher, 2), "one process");
  }
}

TEST(Communicator, UnknownBackend) {
  expect_refused("ucc", launched(Launcher::kOpenMpi, 2), "ucc");
}

TEST(Communicator, NamedMpiIsRefusedWhereItIsNotCompiledIn) {
  if (mpi_available()) GTEST_SKIP() << "MPI is compiled in";
  expect_refused("mpi", LaunchContext{}, "HEDDLE_WITH_MPI");
}

TEST(Communicator, NamedGlooIsRefusedWhereItIsNotCompiledIn) {
  if (gloo_available()) GTEST_SKIP() << "Gloo is compiled in";
  expect_refused("gloo", launched(Launcher::kEnvironment, 2), "HEDDLE_WITH_GLOO");
}

TEST(Communicator, EvenCounts) {
  EXPECT_EQ(even_counts(8, 3), (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(even_counts(2, 4), (std::vector<int64_t>{1, 1, 0, 0}));
  for (int64_t n = 0; n < 50; ++n) {
    for (int parts = 1; parts < 9; ++parts) {
      const auto counts = even_counts(n, parts);
      int64_t sum = 0;
      for (const int64_t c : counts) sum += c;
      EXPECT_EQ(sum, n);
      EXPECT_LE(counts.front() - counts.back(), 1);
    }
  }
}

using CommunicatorDeathTest = ::testing::Test;

TEST(CommunicatorDeathTest, CountsMustFit) {
  const auto comm = connect_ranks(DistConfig{}, LaunchContext{}).comm;
  std::vector<float> x(4);
  const std::vector<int64_t> counts = {3};
  EXPECT_DEATH(comm->all_gather(std::span<float>(x), counts), "counts do not add up");
}

TEST(CommunicatorDeathTest, AbortEndsWithTheCode) {
  EXPECT_EXIT(abort_job(6), ::testing::ExitedWithCode(6), "");
}

}  // namespace
}  // namespace heddle
