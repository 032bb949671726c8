// Where rank 0 is met, which job and which attempt, and the explicit keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/comm/launch_context.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Environment operator+(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Environment kPlain = {{"RANK", "1"},         {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
const Environment kTorchrun = kPlain + Environment{{"TORCHELASTIC_RUN_ID", "none"},
                                                   {"TORCHELASTIC_RESTART_COUNT", "3"},
                                                   {"GROUP_WORLD_SIZE", "1"},
                                                   {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
const Environment kAgentStore = {{"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prun.n1@1"}};
const Environment kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Environment kSrun = {{"SLURM_JOB_ID", "4711"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_STEP_ID", "2"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NODELIST", "gpu[07-08,12]"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};

DistConfig explicit_place() {
  DistConfig config;
  config.rank = 1;
  config.world_size = 4;
  config.local_rank = 1;
  config.local_size = 2;
  return config;
}

struct Case {
  const char* name;
  Environment env;
  DistConfig config;
  std::string addr;
  int port;
  std::string port_origin, job_id;
  int64_t restart_count;
  bool pmi;
};

TEST(LaunchEndpoint, Table) {
  DistConfig with_port;
  with_port.master_port = 4000;
  DistConfig with_addr;
  with_addr.master_addr = "fd00::1";
  DistConfig all = explicit_place();
  all.master_addr = "n9";
  all.master_port = 4001;
  const std::vector<Case> cases = {
      {"alone", {}, {}, "", 0, "default", "heddle", 0, false},
      {"plain", kPlain, {}, "n1", 29500, "MASTER_PORT", "heddle", 0, false},
      {"heddle launch",
       kPlain + Environment{{"HEDDLE_JOB_ID", "j1"}},
       {},
       "n1",
       29500,
       "MASTER_PORT",
       "j1",
       0,
       false},
      {"torchrun, nobody listens", kTorchrun, {}, "n1", 29500, "MASTER_PORT", "none", 3, false},
      {"torchrun, the agent listens",
       kTorchrun + kAgentStore,
       {},
       "n1",
       29501,
       "MASTER_PORT + 1",
       "none",
       3,
       false},
      {"torchrun, the agent has the last port",
       kTorchrun + kAgentStore + Environment{{"MASTER_PORT", "65535"}},
       {},
       "n1",
       65534,
       "MASTER_PORT - 1",
       "none",
       3,
       false},
      {"torchrun, port chosen", kTorchrun + kAgentStore, with_port, "n1", 4000, "dist.master_port",
       "none", 3, false},
      {"torchrun, address chosen", kTorchrun, with_addr, "fd00::1", 29500, "MASTER_PORT", "none", 3,
       false},
      {"torchrun, several agents count for themselves",
       kTorchrun + Environment{{"GROUP_WORLD_SIZE", "2"}},
       {},
       "n1",
       29500,
       "MASTER_PORT",
       "none",
       0,
       false},
      {"mpirun says it through MPI", kOpenMpi, {}, "", 0, "default", "prun.n1@1", 0, true},
      {"mpirun does not mean a script's MASTER_PORT",
       kPlain + kOpenMpi,
       {},
       "",
       0,
       "default",
       "prun.n1@1",
       0,
       true},
      {"mpirun, port chosen", kOpenMpi, with_port, "", 4000, "dist.master_port", "prun.n1@1", 0,
       true},
      {"Hydra", kHydra, {}, "", 0, "default", "heddle", 0, true},
      {"srun", kSrun, {}, "gpu07", 20255, "SLURM_JOB_ID and SLURM_STEP_ID", "4711.2", 0, false},
      {"srun after a requeue",
       kSrun + Environment{{"SLURM_RESTART_COUNT", "2"}},
       {},
       "gpu07",
       20255,
       "SLURM_JOB_ID and SLURM_STEP_ID",
       "4711.2",
       2,
       false},
      {"srun, exported by the script",
       kSrun + Environment{{"MASTER_ADDR", "gpu08"}, {"MASTER_PORT", "12345"}},
       {},
       "gpu08",
       12345,
       "MASTER_PORT",
       "4711.2",
       0,
       false},
      {"srun with PMIx",
       kSrun + Environment{{"PMIX_NAMESPACE", "slurm.4711.2"}},
       {},
       "gpu07",
       20255,
       "SLURM_JOB_ID and SLURM_STEP_ID",
       "4711.2",
       0,
       true},
      {"explicit", {}, all, "n9", 4001, "dist.master_port", "heddle", 0, false},
      {"explicit over torchrun", kTorchrun, all, "n9", 4001, "dist.master_port", "heddle", 0,
       false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const LaunchContext got = resolve_launch(c.env, c.config);
    EXPECT_EQ(got.master_addr, c.addr);
    EXPECT_EQ(got.master_port, c.port);
    EXPECT_THAT(got.origin.master_port, HasSubstr(c.port_origin));
    EXPECT_EQ(got.job_id, c.job_id);
    EXPECT_EQ(got.restart_count, c.restart_count);
    EXPECT_EQ(got.pmi, c.pmi);
  }
}

TEST(LaunchEndpoint, SlurmPortsAreOfTheJobAndBelowTheEphemeralOnes) {
  for (int job = 1; job < 200; ++job) {
    const auto env = kSrun + Environment{{"SLURM_JOB_ID", std::to_string(job)}};
    const int port = resolve_launch(env).master_port;
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 30000);
    EXPECT_EQ(port, resolve_launch(env + Environment{{"SLURM_PROCID", "3"}}).master_port);
  }
}

TEST(LaunchEndpoint, FirstHost) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,m2"), "n1");
  EXPECT_EQ(first_host("n[1-4]"), "n1");
  EXPECT_EQ(first_host("n[003,007-9],m1"), "n003");
  EXPECT_EQ(first_host("rack[2-3]node[10-12]x"), "rack2node10x");
  EXPECT_EQ(first_host("n-a.b[5]"), "n-a.b5");
  EXPECT_EQ(first_host("n[1"), "n");
  EXPECT_EQ(first_host(""), "");
}

TEST(LaunchEndpoint, ExplicitKeysWinAndAreNamed) {
  const LaunchContext got = resolve_launch(kTorchrun, explicit_place());
  EXPECT_EQ(got.launcher, Launcher::kExplicit);
  EXPECT_EQ(got.rank, 1);
  EXPECT_EQ(got.world_size, 4);
  EXPECT_EQ(got.local_rank, 1);
  EXPECT_EQ(got.local_size, 2);
  EXPECT_EQ(got.origin.rank, "dist.rank");
  ASSERT_EQ(got.notes.size(), 1u);
  EXPECT_THAT(got.notes[0], AllOf(HasSubstr("Not used"), HasSubstr("TORCHELASTIC_RUN_ID")));
}

TEST(LaunchEndpoint, TableShowsEveryOriginAndNoSecret) {
  const std::string table =
      resolve_launch(kTorchrun + kAgentStore + Environment{{"HEDDLE_STORE_TOKEN", "s3cret"}})
          .table();
  for (const char* part :
       {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "n1", "MASTER_ADDR",
        "29501", "MASTER_PORT + 1", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    EXPECT_THAT(table, HasSubstr(part));
  }
  EXPECT_THAT(table, Not(HasSubstr("s3cret")));
  EXPECT_THAT(resolve_launch(kOpenMpi).table(), HasSubstr("rank 0 tells it through MPI"));
}

struct Refused {
  const char* name;
  Environment env;
  DistConfig config;
  ExitCode code;
  std::vector<std::string> parts;
};

TEST(LaunchEndpoint, Refusals) {
  DistConfig only_rank;
  only_rank.rank = 1;
  DistConfig beyond = explicit_place();
  beyond.rank = 4;
  DistConfig local_beyond = explicit_place();
  local_beyond.local_rank = 2;
  DistConfig huge = explicit_place();
  huge.world_size = int64_t{1} << 40;
  const std::vector<Refused> cases = {
      {"port zero",
       kPlain + Environment{{"MASTER_PORT", "0"}},
       {},
       ExitCode::kCommunication,
       {"MASTER_PORT", "'0'", "1 to 65535"}},
      {"port beyond",
       kTorchrun + Environment{{"MASTER_PORT", "65536"}},
       {},
       ExitCode::kCommunication,
       {"MASTER_PORT", "'65536'"}},
      {"negative port",
       kPlain + Environment{{"MASTER_PORT", "-1"}},
       {},
       ExitCode::kCommunication,
       {"MASTER_PORT", "'-1'"}},
      {"no address",
       kPlain + Environment{{"MASTER_ADDR", ""}},
       {},
       ExitCode::kCommunication,
       {"MASTER_ADDR is empty"}},
      {"negative restarts",
       kTorchrun + Environment{{"TORCHELASTIC_RESTART_COUNT", "-2"}},
       {},
       ExitCode::kCommunication,
       {"TORCHELASTIC_RESTART_COUNT", "'-2'"}},
      {"endless job id",
       kPlain + Environment{{"HEDDLE_JOB_ID", std::string(5000, 'x')}},
       {},
       ExitCode::kCommunication,
       {"HEDDLE_JOB_ID", "at most 1024"}},
      {"some explicit keys",
       kPlain,
       only_rank,
       ExitCode::kConfig,
       {"dist.rank set without dist.world_size, dist.local_rank, dist.local_size"}},
      {"rank beyond", {}, beyond, ExitCode::kConfig, {"dist.rank: got 4", "0 to 3"}},
      {"local rank beyond", {}, local_beyond, ExitCode::kConfig, {"dist.local_rank: got 2"}},
      {"huge", {}, huge, ExitCode::kConfig, {"dist.world_size"}},
  };
  for (const Refused& c : cases) {
    SCOPED_TRACE(c.name);
    try {
      const LaunchContext got = resolve_launch(c.env, c.config);
      ADD_FAILURE() << "accepted as " << got.description();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), c.code);
      for (const std::string& part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    }
  }
}

TEST(LaunchEndpoint, RanksNeedNotAgreeOnTheirPlace) {
  DistConfig a = explicit_place(), b = a;
  b.rank = 2;
  b.local_rank = 0;
  b.interface = "eth1";
  EXPECT_EQ(without_place(a), without_place(b));
  b.timeout_s = 1;
  EXPECT_NE(without_place(a), without_place(b));
}

}  // namespace
}  // namespace heddle
