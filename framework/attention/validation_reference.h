// What the validation layer compares with: kernels/reference on one kv head of one batch row, with
// every query head of its group.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/abi/heddle_attention.h"

namespace heddle {

// Recomputes the results of a finished call for batch row b and kv head kv. Returns the first
// element that differs, "dk (b 0, token 17, head 2, dim 5): got 0.1, expected 0.2 (tolerance
// 1e-5)", or an empty text. fp32 on the CPU; `rounding` is half the distance of 1 to the next
// number of the type that these values were rounded to when the call made them, 0 for fp32. Cost:
// visible pairs * head_dim in scalar fp64, some 10 s for 16384 tokens.
std::string compare_with_reference(const heddle_attention_problem& problem,
                                   const heddle_attention_call& call, int64_t b, int64_t kv,
                                   double rounding = 0.0);

}  // namespace heddle
