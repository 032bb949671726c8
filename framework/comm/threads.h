// How many compute threads a rank may use without taking the processors of its neighbours.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"

namespace heddle {

struct ThreadBudget {
  int threads = 1;      // at least 1
  int processors = 1;   // in this process's affinity mask
  std::string warning;  // not empty: the launcher has bound this rank to less than the host offers
};

// Collective. Open MPI binds a rank to one core when there are one or two ranks, to a socket when
// there are more, unless --bind-to none is given; Slurm binds as it is configured. So each
// processor of our mask is divided by the ranks of this host whose mask has it as well.
ThreadBudget default_threads(Communicator& comm);

// The division itself: sum over own processors of 1 / (masks that have it), rounded down, at least
// 1. `masks` are the masks of all ranks of the host, the own one among them.
int fair_share(std::span<const int> own, const std::vector<std::vector<int>>& masks);

}  // namespace heddle
