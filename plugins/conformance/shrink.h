// Making a failing case small.
#pragma once

#include <functional>
#include <vector>

#include "plugins/conformance/case.h"

namespace heddle::conformance {

// The next smaller cases of a case, boldest first: lengths, heads, head_dim, batch and window
// halved or lowered by one, layout and order made plain. Positions that align the last query with
// the last key keep doing so, groups stay whole, kv_len stays within the cache.
std::vector<Case> smaller_cases(const Case& c);

// The smallest case reached from `c` by steps that still fail, with at most `budget` questions.
Case shrink(const Case& c, const std::function<bool(const Case&)>& fails, int budget);

}  // namespace heddle::conformance
