// What `heddle train --dry-run` prints: the resolved configuration, windows, parameters, memory per
// rank, batch arithmetic and the attention choice with every refusal. Trains and writes nothing.
#pragma once

#include <string>
#include <vector>

#include "framework/train/run.h"

namespace heddle {

// Memory of this rank by kind, as a training run takes it.
std::vector<MemoryItem> training_memory(const Run& run);

std::string describe_run(const Run& run);

}  // namespace heddle
