// What to change when a run does not fit.
#pragma once

#include <optional>
#include <string>

#include "framework/report/plan.h"

namespace heddle {

// The fastest predicted of the changes that make the run fit: dist.shard, a smaller
// train.device_batch_size, both; otherwise more hosts; otherwise which memory is too large whatever
// is done. Nothing when the run fits at `level`.
std::optional<std::string> advise(const PlanRequest& request, const RunPlan& plan,
                                  ShardLevel level);

}  // namespace heddle
