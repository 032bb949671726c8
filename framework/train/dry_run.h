// What `heddle train --dry-run` prints: the resolved configuration, windows, parameters, memory per
// rank, batch arithmetic and the attention choice with every refusal. Trains and writes nothing.
#pragma once

#include <string>
#include <vector>

#include "framework/optim/ownership.h"
#include "framework/train/run.h"

namespace heddle {

// Memory of a rank by kind, as this training run takes it; other ranks differ in what they own.
std::vector<MemoryItem> training_memory(const Run& run, const Ownership& ownership, int rank);

std::string describe_run(const Run& run);

}  // namespace heddle
