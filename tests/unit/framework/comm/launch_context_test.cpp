#include "framework/comm/launch_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"

namespace heddle {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Environment operator+(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

Environment without(Environment env, const std::string& name) {
  env.erase(name);
  return env;
}

std::string str(int value) {
  return std::to_string(value);
}

// What each launcher sets, beside what does not matter here.
Environment plain(int rank, int size, int local_rank, int local_size) {
  return {{"RANK", str(rank)},
          {"WORLD_SIZE", str(size)},
          {"LOCAL_RANK", str(local_rank)},
          {"LOCAL_WORLD_SIZE", str(local_size)},
          {"MASTER_ADDR", "n1"},
          {"MASTER_PORT", "29500"}};
}
Environment torchrun(int rank, int size, int local_rank, int local_size, int agents) {
  return plain(rank, size, local_rank, local_size) +
         Environment{{"TORCHELASTIC_RUN_ID", "none"},
                     {"GROUP_RANK", str(rank / local_size)},
                     {"GROUP_WORLD_SIZE", str(agents)}};
}
Environment openmpi(int rank, int size, int local_rank, int local_size) {
  return {{"OMPI_COMM_WORLD_RANK", str(rank)},
          {"OMPI_COMM_WORLD_SIZE", str(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", str(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", str(local_size)},
          {"OMPI_UNIVERSE_SIZE", "64"},
          {"PMIX_NAMESPACE", "1234567"},
          {"PMIX_RANK", str(rank)}};
}
Environment hydra(int rank, int size, int local_rank, int local_size) {
  return {{"PMI_RANK", str(rank)},
          {"PMI_SIZE", str(size)},
          {"PMI_FD", "8"},
          {"MPI_LOCALRANKID", str(local_rank)},
          {"MPI_LOCALNRANKS", str(local_size)}};
}
Environment slurm_job(int tasks) {
  return {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", str(tasks)}, {"SLURM_JOB_NUM_NODES", "4"}};
}
// sbatch gives its script PROCID, LOCALID and NODEID too.
Environment batch_script(int tasks) {
  return slurm_job(tasks) +
         Environment{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}};
}
Environment srun(int rank, int size, int local_rank, int node, const std::string& tasks_per_node,
                 int nodes) {
  return slurm_job(size) +
         Environment{
             {"SLURM_PROCID", str(rank)},         {"SLURM_LOCALID", str(local_rank)},
             {"SLURM_NODEID", str(node)},         {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_NUM_TASKS", str(size)}, {"SLURM_STEP_NUM_NODES", str(nodes)},
             {"SLURM_STEP_NODELIST", "n[1-4]"},   {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node}};
}

struct Resolved {
  const char* name;
  Environment env;
  Launcher launcher;
  int rank, world_size, local_rank, local_size;
  size_t notes = 0;
};

TEST(LaunchContext, Table) {
  const std::vector<Resolved> cases = {
      {"nothing", {{"PATH", "/bin"}}, Launcher::kSingle, 0, 1, 0, 1},
      {"torchrun", torchrun(5, 8, 1, 4, 2), Launcher::kTorchrun, 5, 8, 1, 4},
      {"torchrun of one", torchrun(0, 1, 0, 1, 1), Launcher::kTorchrun, 0, 1, 0, 1},
      {"set by hand", plain(1, 2, 1, 2), Launcher::kEnvironment, 1, 2, 1, 2},
      {"mpirun", openmpi(2, 3, 2, 3), Launcher::kOpenMpi, 2, 3, 2, 3},
      {"mpirun --map-by node", openmpi(2, 4, 1, 2), Launcher::kOpenMpi, 2, 4, 1, 2},
      {"Hydra", hydra(1, 4, 1, 4), Launcher::kHydra, 1, 4, 1, 4},
      {"srun", srun(3, 7, 1, 1, "2(x3),1", 4), Launcher::kSrun, 3, 7, 1, 2},
      {"srun, last node", srun(6, 7, 0, 3, "2(x3),1", 4), Launcher::kSrun, 6, 7, 0, 1},
      {"srun, plain list", srun(4, 6, 0, 2, "3,1,2", 3), Launcher::kSrun, 4, 6, 0, 2},
      {"srun --mpi=pmi2 leaves PMI_* without Hydra's local ones",
       srun(1, 2, 1, 0, "2", 1) + Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
       Launcher::kSrun, 1, 2, 1, 2, 1},

      // Not srun: the batch script, the shell of salloc.
      {"batch script", batch_script(8), Launcher::kSingle, 0, 1, 0, 1, 1},
      {"shell of salloc", srun(0, 1, 0, 0, "1", 1) + Environment{{"SLURM_STEP_ID", "4294967290"}},
       Launcher::kSingle, 0, 1, 0, 1, 1},
      {"ssh into a job", {{"SLURM_JOB_ID", "77"}}, Launcher::kSingle, 0, 1, 0, 1, 1},
      {"mpirun in a batch script", batch_script(8) + openmpi(3, 8, 3, 8), Launcher::kOpenMpi, 3, 8,
       3, 8, 1},
      {"torchrun in a batch script", batch_script(1) + torchrun(1, 2, 1, 2, 1), Launcher::kTorchrun,
       1, 2, 1, 2, 1},

      // One launcher inside another.
      {"torchrun agents started by srun, one a node",
       srun(1, 2, 0, 1, "1(x2)", 2) + torchrun(9, 16, 1, 8, 2), Launcher::kTorchrun, 9, 16, 1, 8,
       1},
      {"torchrun agents started by mpirun", openmpi(1, 2, 0, 1) + torchrun(9, 16, 1, 8, 2),
       Launcher::kTorchrun, 9, 16, 1, 8, 1},
      {"torchrun from an srun shell", srun(0, 1, 0, 0, "1", 1) + torchrun(1, 4, 1, 4, 1),
       Launcher::kTorchrun, 1, 4, 1, 4, 1},
      {"mpirun whose daemons srun started", srun(1, 2, 0, 1, "1(x2)", 2) + openmpi(5, 8, 1, 4),
       Launcher::kOpenMpi, 5, 8, 1, 4, 1},
      {"Hydra from an srun shell", srun(0, 1, 0, 0, "1", 1) + hydra(1, 4, 1, 4), Launcher::kHydra,
       1, 4, 1, 4, 1},

      // Sets that agree: the launcher counts, not a script that copied its values.
      {"mpirun and a script that maps the names", openmpi(1, 4, 1, 4) + plain(1, 4, 1, 4),
       Launcher::kOpenMpi, 1, 4, 1, 4},
      // A pod's WORLD_SIZE and RANK, without the local ones.
      {"mpirun in a pod with leftovers",
       openmpi(1, 2, 1, 2) + Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Launcher::kOpenMpi, 1,
       2, 1, 2, 1},
      // Names that several programs use on their own.
      {"only MASTER_ADDR",
       {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}},
       Launcher::kSingle,
       0,
       1,
       0,
       1},
      {"only PMIX_RANK", {{"PMIX_RANK", "0"}}, Launcher::kSingle, 0, 1, 0, 1},
  };
  for (const Resolved& c : cases) {
    SCOPED_TRACE(c.name);
    const LaunchContext got = resolve_launch(c.env);
    EXPECT_EQ(launcher_name(got.launcher), std::string(launcher_name(c.launcher)));
    EXPECT_EQ(got.rank, c.rank);
    EXPECT_EQ(got.world_size, c.world_size);
    EXPECT_EQ(got.local_rank, c.local_rank);
    EXPECT_EQ(got.local_size, c.local_size);
    EXPECT_EQ(got.notes.size(), c.notes) << ::testing::PrintToString(got.notes);
  }
}

TEST(LaunchContext, SaysWhereEachValueCameFrom) {
  const LaunchContext got = resolve_launch(srun(3, 7, 1, 1, "2(x3),1", 4));
  EXPECT_EQ(got.origin.rank, "SLURM_PROCID");
  EXPECT_EQ(got.origin.world_size, "SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(got.origin.local_rank, "SLURM_LOCALID");
  EXPECT_EQ(got.origin.local_size, "SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(got.description(),
            "srun: rank 3 of 7 (SLURM_PROCID, SLURM_STEP_NUM_TASKS), local 1 of 2 (SLURM_LOCALID, "
            "SLURM_STEP_TASKS_PER_NODE)");
  EXPECT_EQ(resolve_launch({}).origin.rank, "default");
}

TEST(LaunchContext, BatchScriptIsToldAboutItsTasks) {
  EXPECT_THAT(resolve_launch(batch_script(8)).notes,
              ElementsAre(AllOf(HasSubstr("77"), HasSubstr("8 tasks"), HasSubstr("srun"))));
  EXPECT_THAT(resolve_launch(batch_script(1)).notes,
              ElementsAre(::testing::Not(HasSubstr("tasks"))));
  EXPECT_THAT(resolve_launch({}).notes, IsEmpty());
}

struct Refused {
  const char* name;
  Environment env;
  std::vector<std::string> parts;  // of the message
};

TEST(LaunchContext, Refusals) {
  const std::vector<Refused> cases = {
      // Incomplete.
      {"torchrun without LOCAL_RANK",
       without(torchrun(1, 2, 1, 2, 1), "LOCAL_RANK"),
       {"torchrun", "LOCAL_RANK missing"}},
      {"torchrun without MASTER_PORT",
       without(torchrun(1, 2, 1, 2, 1), "MASTER_PORT"),
       {"MASTER_PORT missing"}},
      {"only WORLD_SIZE",
       {{"WORLD_SIZE", "2"}},
       {"RANK, LOCAL_RANK", "missing", "WORLD_SIZE is set"}},
      {"only RANK", {{"RANK", "0"}}, {"WORLD_SIZE", "missing"}},
      {"mpirun without its size",
       without(openmpi(1, 2, 1, 2), "OMPI_COMM_WORLD_SIZE"),
       {"openmpi", "OMPI_COMM_WORLD_SIZE missing"}},
      {"mpirun's names left over after its server is gone",
       without(openmpi(1, 2, 1, 2), "PMIX_NAMESPACE"),
       {"PMIX_NAMESPACE missing"}},
      {"PMI without local ranks",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
       {"hydra", "MPI_LOCALRANKID, MPI_LOCALNRANKS missing"}},
      {"srun without a node list",
       without(srun(1, 2, 1, 0, "2", 1), "SLURM_STEP_NODELIST"),
       {"srun", "SLURM_STEP_NODELIST missing"}},

      // Two views.
      {"torchrun and mpirun",
       torchrun(1, 4, 1, 4, 1) + openmpi(1, 2, 1, 2),
       {"torchrun: rank 1 of 4", "openmpi: rank 1 of 2"}},
      {"same size, other rank",
       openmpi(0, 2, 0, 2) + plain(1, 2, 1, 2),
       {"openmpi: rank 0 of 2", "environment: rank 1 of 2"}},
      {"mpirun in each of several srun tasks a node",
       srun(1, 4, 1, 0, "4", 1) + openmpi(0, 2, 0, 2),
       {"openmpi", "srun: rank 1 of 4"}},
      {"four jobs of one in four tasks",
       srun(1, 4, 0, 1, "1(x4)", 4) + openmpi(0, 1, 0, 1),
       {"openmpi: rank 0 of 1", "srun: rank 1 of 4"}},
      {"two MPIs", openmpi(0, 2, 0, 2) + hydra(0, 4, 0, 4), {"openmpi", "hydra"}},

      // Values.
      {"negative rank", openmpi(-1, 2, 0, 2), {"OMPI_COMM_WORLD_RANK", "'-1'", "0 to 1"}},
      {"rank not below size", openmpi(2, 2, 1, 2), {"OMPI_COMM_WORLD_RANK", "'2'", "0 to 1"}},
      {"size zero", openmpi(0, 0, 0, 1), {"OMPI_COMM_WORLD_SIZE", "'0'"}},
      {"huge size",
       openmpi(0, 2, 0, 2) + Environment{{"OMPI_COMM_WORLD_SIZE", "99999999999"}},
       {"OMPI_COMM_WORLD_SIZE", "'99999999999'"}},
      {"size beyond any machine", openmpi(0, 2000000000, 0, 1), {"'2000000000'"}},
      {"garbage",
       torchrun(0, 2, 0, 2, 1) + Environment{{"WORLD_SIZE", "two"}},
       {"WORLD_SIZE", "'two'"}},
      {"trailing text", torchrun(0, 2, 0, 2, 1) + Environment{{"RANK", "1x"}}, {"RANK", "'1x'"}},
      {"spaces", torchrun(0, 2, 0, 2, 1) + Environment{{"RANK", " 1"}}, {"RANK", "' 1'"}},
      {"empty", torchrun(0, 2, 0, 2, 1) + Environment{{"RANK", ""}}, {"RANK", "''"}},
      {"local size above size", hydra(0, 2, 0, 3), {"MPI_LOCALNRANKS", "'3'", "1 to 2"}},
      {"local rank above local size", hydra(1, 2, 2, 2), {"MPI_LOCALRANKID", "'2'"}},
      {"task list too short",
       srun(1, 2, 0, 3, "1(x2)", 2),
       {"SLURM_STEP_TASKS_PER_NODE", "node 3"}},
      {"task list is garbage", srun(1, 2, 0, 0, "2(y3)", 2), {"'2(y3)'"}},
      {"task list is cut", srun(1, 2, 0, 0, "2(x", 2), {"'2(x'"}},
  };
  for (const Refused& c : cases) {
    SCOPED_TRACE(c.name);
    try {
      const LaunchContext got = resolve_launch(c.env);
      ADD_FAILURE() << "accepted as " << got.description();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kCommunication);
      EXPECT_FALSE(e.remedy().empty());
      for (const std::string& part : c.parts) EXPECT_THAT(e.what(), HasSubstr(part));
    }
  }
}

TEST(LaunchContext, ReadsTheProcessEnvironment) {
  ASSERT_EQ(setenv("HEDDLE_LAUNCH_TEST", "a=b", 1), 0);
  EXPECT_EQ(process_environment().at("HEDDLE_LAUNCH_TEST"), "a=b");
}

}  // namespace
}  // namespace heddle
