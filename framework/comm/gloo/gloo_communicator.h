// Ranks over Gloo's TCP transport: for CPU ranks that torchrun, heddle launch or the plain
// environment started. Compiled from gloo_communicator.cpp with HEDDLE_WITH_GLOO, from no_gloo.cpp
// without. Only Gloo's messages between pairs are used; sums are HostCommunicator's.
#pragma once

#include <memory>

#include "framework/comm/host_communicator.h"
#include "framework/comm/rendezvous.h"

namespace heddle {

// Is Gloo compiled in?
bool gloo_available();

// Collective. Every wait ends after rendezvous->timeout(). `parent`: finished with it, when the
// launcher wants it so (MPI ranks must call MPI_Finalize); may be nullptr. Throws comm_error when
// Gloo is not compiled in or ranks cannot connect.
std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous,
                                                     const LaunchContext& launch,
                                                     std::unique_ptr<Communicator> parent = nullptr,
                                                     const MessageLimits& limits = {});

}  // namespace heddle
