// Who started this process, and as which of how many. Launchers hand rank and size over in the
// environment, each under its own names; leftovers of an outer launcher look the same. So a set of
// names counts only when it is complete, and complete sets must agree.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace heddle {

using Environment = std::map<std::string, std::string>;

enum class Launcher {
  kSingle,       // no launcher: rank 0 of 1
  kTorchrun,     // RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_*, TORCHELASTIC_RUN_ID
  kOpenMpi,      // OMPI_COMM_WORLD_*, PMIX_NAMESPACE
  kHydra,        // PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (MPICH, Intel MPI)
  kSrun,         // SLURM_PROCID, SLURM_STEP_* of a step, not of a batch script
  kEnvironment,  // torchrun's names without torchrun: set by hand or by a script
};

const char* launcher_name(Launcher launcher);

struct LaunchContext {
  // The variable that each value was read from, "default" without a launcher.
  struct Origins {
    std::string rank = "default", world_size = "default";
    std::string local_rank = "default", local_size = "default";
  };

  Launcher launcher = Launcher::kSingle;
  int rank = 0;  // of all processes
  int world_size = 1;
  int local_rank = 0;  // of the processes of this job on this host
  int local_size = 1;
  Origins origin;
  std::vector<std::string> notes;  // variables that were recognised and not used, and why

  // "openmpi: rank 1 of 3 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), local 1 of 3 (...)"
  std::string description() const;
};

// The variables of this process.
Environment process_environment();

// Reads the launcher's contract. Of several complete sets the innermost launcher's counts:
// torchrun, Open MPI, Hydra, srun, then torchrun's names set by hand. Throws comm_error when no set
// is complete although one was begun (naming what is missing), when two complete sets disagree in
// rank or size and neither is the other's container, or when a value is not a count in range.
LaunchContext resolve_launch(const Environment& env);

}  // namespace heddle
