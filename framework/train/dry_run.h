// What `heddle train --dry-run` prints: the resolved configuration, windows, parameters, memory per
// rank, batch arithmetic and the attention choice with every refusal. Trains and writes nothing.
#pragma once

#include <string>

#include "framework/train/run.h"

namespace heddle {

std::string describe_run(const Run& run);

}  // namespace heddle
