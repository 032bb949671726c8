#include "framework/comm/mpi/mpi_communicator.h"
#include "framework/core/error.h"

namespace heddle {

bool mpi_available() {
  return false;
}

std::unique_ptr<Communicator> make_mpi_communicator(const LaunchContext&, const MessageLimits&) {
  throw comm_error("The mpi backend is not in this build (HEDDLE_WITH_MPI was off)",
                   "Install libopenmpi-dev and openmpi-bin and build again");
}

void abort_mpi(int) {}

}  // namespace heddle
