// The processes of `heddle launch`: N ranks of one machine as children of this process.
//
// Each rank has the plain environment contract (RANK, WORLD_SIZE, ...), a process group of its own
// and a life bound to ours. Its output appears line by line behind "[rank] ". SIGINT, SIGTERM,
// SIGHUP (as SIGTERM) and SIGUSR1 go to all ranks, which then save and stop. When one rank fails
// the others get `grace_seconds` to notice and write what they know, then SIGTERM, then SIGKILL.
#pragma once

#include <string>
#include <vector>

#include "framework/comm/launch_context.h"

namespace heddle {

struct JobOptions {
  int ranks = 1;
  std::vector<std::string> command;  // path of the program, then its arguments
  double grace_seconds = 15;
  int port = 0;  // of rank 0's store on the loopback interface; 0: one that is free
};

struct JobIdentity {
  int port = 0;
  std::string job_id;
  std::string token;  // what a process must know to join
};

// `base` without what other launchers left in it, and the contract of one rank of this job.
Environment rank_environment(Environment base, const JobIdentity& job, int rank, int ranks);

// Exit code 0 when all ranks ended with 0, otherwise that of the rank that failed first; 6 when a
// signal ended it. Throws heddle::Error when the port is taken or the program cannot be started;
// no rank is left behind then.
int run_job(const JobOptions& options);

}  // namespace heddle
