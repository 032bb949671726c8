// A plan for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "framework/core/json.h"
#include "framework/report/plan.h"

namespace heddle {

// What is stated beside the figures.
struct PlanNotes {
  ShardLevel level = ShardLevel::kNone;  // of the configuration
  std::string advice;                    // empty: it fits
  double measured_seconds = 0;           // of a step of the same run, 0: unknown
};

// The memory of a rank alone, and the advice.
std::string memory_text(const RunPlan& plan, const PlanNotes& notes);
std::string plan_text(const PlanRequest& request, const RunPlan& plan, const PlanNotes& notes);
json::object plan_json(const PlanRequest& request, const RunPlan& plan, const PlanNotes& notes);

// One row a topology: step time and efficiency of each level against the first row.
struct ScalingRow {
  Topology topology;
  RunPlan plan;
};
std::string scaling_text(const std::vector<ScalingRow>& rows);
json::array scaling_json(const std::vector<ScalingRow>& rows);

}  // namespace heddle
