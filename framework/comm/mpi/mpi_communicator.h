// Ranks that mpirun or srun started, over MPI. Compiled from mpi_communicator.cpp with
// HEDDLE_WITH_MPI, from no_mpi.cpp without.
#pragma once

#include <memory>

#include "framework/comm/host_communicator.h"

namespace heddle {

// Is MPI compiled in?
bool mpi_available();

// Initialises MPI if nobody has, on the calling thread, which must make all later calls too. Throws
// comm_error when MPI is not compiled in, and when MPI counts other ranks than the launcher.
std::unique_ptr<Communicator> make_mpi_communicator(const LaunchContext& launch,
                                                    const MessageLimits& limits = {});

// Ends all ranks when MPI is running; otherwise returns.
void abort_mpi(int exit_code);

}  // namespace heddle
