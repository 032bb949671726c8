#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "framework/comm/gloo/gloo_communicator.h"
#include "framework/comm/mpi/mpi_communicator.h"
#include "framework/comm/nccl/nccl_communicator.h"
#include "framework/comm/rendezvous.h"
#include "framework/comm/self/self_communicator.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

enum class Backend { kSelf, kMpi, kGloo };

std::string mpirun_hint(const LaunchContext& launch) {
  return fmt::format("Start the {} ranks with mpirun -n {} heddle ..., or one process alone",
                     launch.world_size, launch.world_size);
}

Backend automatic(const LaunchContext& launch) {
  if (launch.world_size == 1) return Backend::kSelf;
  if (launch.pmi && launch.launcher != Launcher::kTorchrun &&
      launch.launcher != Launcher::kExplicit) {
    return Backend::kMpi;
  }
  if (gloo_available()) return Backend::kGloo;
  throw comm_error(fmt::format("{} processes were started and no communicator can connect them: "
                               "got [{}], expected ranks of mpirun or srun, or a build with "
                               "HEDDLE_WITH_GLOO",
                               launch.world_size, launch.description()),
                   mpirun_hint(launch));
}

Backend choose(const DistConfig& config, const LaunchContext& launch) {
  // nccl: what is no device memory goes the same way as without it.
  if (config.backend == "auto" || config.backend == "nccl") return automatic(launch);
  if (config.backend == "self") {
    if (launch.world_size == 1) return Backend::kSelf;
    throw comm_error(
        fmt::format("dist.backend self serves one process, got [{}]", launch.description()),
        "Set dist.backend: auto, or start one process");
  }
  if (config.backend == "gloo") return Backend::kGloo;
  if (config.backend != "mpi") {
    throw comm_error(
        fmt::format("dist.backend: got {}, expected auto, self, mpi, gloo or nccl", config.backend),
        "Set dist.backend: auto");
  }
  // MPI_Init of an agent's child would take it for a job of its own, or abort it.
  if (launch.launcher == Launcher::kTorchrun) {
    throw comm_error(fmt::format("dist.backend mpi cannot connect processes that torchrun "
                                 "started, got [{}]",
                                 launch.description()),
                     mpirun_hint(launch));
  }
  return Backend::kMpi;
}

Ranks connect_gloo(const DistConfig& config, const LaunchContext& launch) {
  if (!gloo_available()) return {nullptr, make_gloo_communicator(nullptr, launch)};  // says why
  Ranks ranks;
  std::unique_ptr<Communicator> parent;
  const bool told = !launch.master_addr.empty() && launch.master_port != 0;
  if (launch.pmi && !told) parent = make_mpi_communicator(launch);
  ranks.rendezvous = meet(config, launch, parent.get());
  ranks.comm = make_gloo_communicator(ranks.rendezvous, launch, std::move(parent));
  return ranks;
}

}  // namespace

Ranks connect_ranks(const DistConfig& config, const LaunchContext& launch) {
  Ranks ranks;
  switch (choose(config, launch)) {
    case Backend::kSelf:
      ranks.comm = make_self_communicator();
      break;
    case Backend::kMpi:
      ranks.comm = make_mpi_communicator(launch);
      if (ranks.comm->world_size() > 1) ranks.rendezvous = meet(config, launch, ranks.comm.get());
      break;
    case Backend::kGloo:
      return connect_gloo(config, launch);
  }
  return ranks;
}

void abort_job(int exit_code) {
  std::fflush(nullptr);
  cut_device_links();
  abort_mpi(exit_code);
  std::_Exit(exit_code);
}

}  // namespace heddle
