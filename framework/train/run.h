// Everything a training or evaluation process is made of, wired in the order in which things can
// go wrong: configuration, plugins, ranks, attention choice, data, model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "framework/attention/attention.h"
#include "framework/comm/communicator.h"
#include "framework/comm/launch_context.h"
#include "framework/comm/rendezvous.h"
#include "framework/config/config.h"
#include "framework/data/batch_plan.h"
#include "framework/data/dataset.h"
#include "framework/device/device.h"
#include "framework/model/spec.h"
#include "framework/optim/sharded_step.h"
#include "framework/train/watchdog.h"

namespace heddle {

// What dist.shard and train.reproducible ask of a job of this size. A rank alone divides nothing.
ShardOptions shard_options(const Config& config, int world_size);

struct Run {
  Config config;
  LaunchContext launch;
  std::shared_ptr<Rendezvous> rendezvous;  // nullptr for a process alone
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<AttentionHost> attention;
  std::unique_ptr<Dataset> dataset;
  ModelSpec spec;
  BatchPlan batch;

  bool chief() const { return comm->rank() == 0; }
};

// Probes plugins (in fresh processes, before MPI starts), connects the ranks, lets `watchdog` join
// them, chooses attention, checks that all ranks agree on configuration, version and attention,
// then opens the data. Throws heddle::Error; nothing has been written by then. What was opened by
// then is in `run`, so that the other ranks do not miss it before they hear of the error.
void open_run(const Config& config, const LaunchContext& launch, Watchdog& watchdog, Run* run);

// Fails on all ranks, naming those that differ from rank 0, unless `text` is the same everywhere.
void require_agreement(Communicator& comm, const std::string& what, const std::string& text);

// Collective: what `body` gives on rank 0, the only one that runs it. An Error in it is thrown on
// all ranks, so that the job ends with its exit code whichever rank the launcher hears of first.
std::string from_first_rank(Communicator& comm, const std::function<std::string()>& body);

}  // namespace heddle
