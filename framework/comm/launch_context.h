// Who started this process, and as which of how many; where rank 0 serves the rendezvous store, and
// which job and attempt this is. Launchers hand these over in the environment, each under its own
// names; leftovers of an outer launcher look the same. So a set of names counts only when it is
// complete, and complete sets must agree.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/config/config.h"

namespace heddle {

using Environment = std::map<std::string, std::string>;

enum class Launcher {
  kSingle,       // no launcher: rank 0 of 1
  kExplicit,     // dist.rank, dist.world_size, dist.local_rank, dist.local_size
  kTorchrun,     // RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_*, TORCHELASTIC_RUN_ID
  kOpenMpi,      // OMPI_COMM_WORLD_*, PMIX_NAMESPACE
  kHydra,        // PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (MPICH, Intel MPI)
  kSrun,         // SLURM_PROCID, SLURM_STEP_* of a step, not of a batch script
  kEnvironment,  // torchrun's names without torchrun: heddle launch, or set by hand
};

const char* launcher_name(Launcher launcher);

struct LaunchContext {
  // What each value was read from: a variable, a configuration key, or a rule in words; "default"
  // without any.
  struct Origins {
    std::string rank = "default", world_size = "default";
    std::string local_rank = "default", local_size = "default";
    std::string master_addr = "default", master_port = "default";
    std::string job_id = "default", restart_count = "default";
  };

  Launcher launcher = Launcher::kSingle;
  int rank = 0;  // of all processes
  int world_size = 1;
  int local_rank = 0;  // of the processes of this job on this host
  int local_size = 1;
  // Rank 0's rendezvous store. Empty and 0: nothing names it (mpirun, a process alone).
  std::string master_addr;
  int master_port = 0;
  std::string job_id = "heddle";
  int64_t restart_count = 0;
  bool pmi = false;  // the launcher serves MPI libraries (PMI or PMIx)
  Origins origin;
  std::vector<std::string> notes;  // variables that were recognised and not used, and why

  // "openmpi: rank 1 of 3 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), local 1 of 3 (...)"
  std::string description() const;
  // Every value and where it came from, one a line, and the notes. No secrets.
  std::string table() const;
};

// The variables of this process.
Environment process_environment();

// Reads the explicit keys and the launcher's contract. Of several complete sets the innermost
// launcher's counts: explicit keys, torchrun, Open MPI, Hydra, srun, then torchrun's names set by
// hand. dist.master_addr and dist.master_port replace the launcher's one by one. Throws comm_error
// when no set is complete although one was begun (naming what is missing), when two complete sets
// disagree in rank or size and neither is the other's container, or when a value is not a count in
// range; config_error when some of the four explicit keys are missing.
LaunchContext resolve_launch(const Environment& env, const DistConfig& config = {});

// First name of a list such as "n[01-03,7],m1": "n01".
std::string first_host(const std::string& nodelist);

// The keys that differ between the ranks of one run at their defaults; ranks must agree on the
// rest.
DistConfig without_place(DistConfig config);

}  // namespace heddle
