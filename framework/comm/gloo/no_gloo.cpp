#include "framework/comm/gloo/gloo_communicator.h"
#include "framework/core/error.h"

namespace heddle {

bool gloo_available() {
  return false;
}

std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous>,
                                                     const LaunchContext&,
                                                     std::unique_ptr<Communicator>,
                                                     const MessageLimits&) {
  throw comm_error("The gloo backend is not in this build (HEDDLE_WITH_GLOO was off)",
                   "Install libgloo-dev and build again, or start the ranks with mpirun");
}

}  // namespace heddle
