// How the ranks of a job find each other: rank 0 serves a store, everybody joins it.
//
//   torchrun, heddle launch, plain environment   MASTER_ADDR, MASTER_PORT (see LaunchContext)
//   srun without MPI                             first host of the step, port from the job's number
//   mpirun, srun with MPI                        rank 0 takes a free port and tells address, port
//                                                and a random token through MPI
//
// dist.master_addr and dist.master_port count before all of these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/comm/store.h"

namespace heddle {

class Rendezvous {
 public:
  Rendezvous(std::unique_ptr<StoreServer> server, std::unique_ptr<StoreClient> client,
             const StoreIdentity& identity, Seconds timeout, std::string own_address);
  ~Rendezvous();

  // Of all ranks; thread-safe.
  StoreClient& store() { return *client_; }
  // nullptr but on rank 0.
  StoreServer* server() { return server_.get(); }
  int rank() const { return identity_.rank; }
  int world_size() const { return identity_.world_size; }
  const std::string& job_id() const { return identity_.job_id; }
  int64_t restart_count() const { return identity_.restart_count; }
  Seconds timeout() const { return timeout_; }  // dist.timeout_s
  // Somebody watches over the ranks and knows of long work that the others have to wait for, such
  // as a checkpoint on a slow disk. From then on a wait for data may take longer than timeout().
  void watch() { watched_ = true; }
  Seconds data_timeout() const { return watched_ ? kWatchedFactor * timeout_ : timeout_; }
  // Where the other ranks reach this one; not loopback when there are ranks on other hosts.
  const std::string& own_address() const { return own_address_; }

  // Prefix for the keys of something that all ranks make together, in the same order.
  std::string next_group();

  // Says goodbye. Rank 0 keeps the store until the others have said it too, or `patience` is over.
  // Without it the others take this rank for lost. A second call does nothing.
  void leave(Seconds patience = Seconds(10.0));

 private:
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> client_;
  StoreIdentity identity_;
  Seconds timeout_;
  std::string own_address_;
  static constexpr double kWatchedFactor = 12;
  int groups_ = 0;
  bool watched_ = false;
  bool left_ = false;
};

// Collective. Returns when all ranks have joined. `through`: the MPI communicator that tells where
// rank 0 is; nullptr: the launch context says it. Throws comm_error within dist.timeout_s: nothing
// says where rank 0 is, it is not where it is said to be, its port is taken, its name does not
// resolve, it refuses this rank, ranks are missing.
std::shared_ptr<Rendezvous> meet(const DistConfig& config, const LaunchContext& launch,
                                 Communicator* through = nullptr);

// A communicator with the store of its job; rendezvous is nullptr for a process alone.
struct Ranks {
  std::shared_ptr<Rendezvous> rendezvous;
  std::unique_ptr<Communicator> comm;
};

// dist.backend `auto`: mpi for ranks that mpirun or srun started, gloo for other ranks, self for a
// process alone; nccl is made over one of these, once there is a device. Throws comm_error when several processes were started and nothing here can connect
// them (never N copies that each take themselves for the whole run), when the backend that the user
// named cannot serve, and when it sees another rank or size than the launcher's environment. To end
// in good order: rendezvous->leave(), then comm->finish().
Ranks connect_ranks(const DistConfig& config, const LaunchContext& launch);

// The addresses that rank 0 listens on, for meet(). `resolved`: those of launch.master_addr; empty
// without one. `own`: this host's. Throws comm_error when rank 0 is not where it is said to be.
struct OwnAddress;
std::vector<std::string> addresses_to_announce(const LaunchContext& launch,
                                               const std::string& interface,
                                               const std::vector<std::string>& resolved,
                                               const std::vector<OwnAddress>& own);

}  // namespace heddle
