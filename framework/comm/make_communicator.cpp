#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "framework/comm/communicator.h"
#include "framework/comm/mpi/mpi_communicator.h"
#include "framework/comm/self/self_communicator.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

bool started_by_mpi(const LaunchContext& launch) {
  return launch.launcher == Launcher::kOpenMpi || launch.launcher == Launcher::kHydra ||
         launch.launcher == Launcher::kSrun;
}

std::string mpirun_hint(const LaunchContext& launch) {
  return fmt::format("Start the {} ranks with mpirun -n {} heddle ..., or one process alone",
                     launch.world_size, launch.world_size);
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(const DistConfig& config,
                                                const LaunchContext& launch) {
  const bool alone = launch.world_size == 1;
  if (config.backend == "self" || (config.backend == "auto" && alone)) {
    if (alone) return make_self_communicator();
    throw comm_error(
        fmt::format("dist.backend self serves one process, got [{}]", launch.description()),
        "Set dist.backend: auto, or start one process");
  }
  if (config.backend == "mpi" || (config.backend == "auto" && started_by_mpi(launch))) {
    // MPI_Init of an agent's child would take it for a job of its own, or abort it.
    if (launch.launcher != Launcher::kTorchrun) return make_mpi_communicator(launch);
    throw comm_error(fmt::format("dist.backend mpi cannot connect processes that torchrun "
                                 "started, got [{}]",
                                 launch.description()),
                     mpirun_hint(launch));
  }
  if (config.backend == "auto") {
    throw comm_error(fmt::format("{} processes were started and no communicator can connect them: "
                                 "got [{}], expected ranks of mpirun or srun",
                                 launch.world_size, launch.description()),
                     mpirun_hint(launch));
  }
  throw comm_error(fmt::format("dist.backend: got {}, expected auto, self or mpi", config.backend),
                   "Set dist.backend: auto");
}

void abort_job(int exit_code) {
  std::fflush(nullptr);
  abort_mpi(exit_code);
  std::_Exit(exit_code);
}

}  // namespace heddle
