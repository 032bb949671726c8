// Comparing what a plugin computed with the reference, element by element.
#pragma once

#include <string>

#include "kernels/reference/attention.h"
#include "plugins/abi/heddle_attention.h"

namespace heddle {

// Both must hold, M being the largest magnitude of the reference: ||error|| <= rel * ||reference||
// and every |error| <= abs * max(1, M).
struct Gate {
  double rel = 0.0;
  double abs = 0.0;
};

// fp32 results against fp64, calibrated on correct kernels with and without tiling.
inline constexpr Gate kForwardGate{3e-6, 1e-5};
inline constexpr Gate kBackwardGate{1e-5, 3e-5};

// A (batch, tokens, heads, dim) tensor.
struct TensorShape {
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
};

// Throws heddle::Error (plugin): "computes wrong numbers: forward B 2 ...: out at batch 0, row 5,
// head 1, dim 3 is 0.31, expected 0.28". A NaN never equals anything.
void compare_tensor(const heddle_attention_problem& problem, const std::string& name,
                    const TensorShape& shape, kernels::reference::View<const float> got,
                    kernels::reference::View<const float> want, const Gate& gate);

// lse (B, H, q_len): within 1e-5 + 2e-6 |lse|, and -inf exactly where the reference has it.
void compare_lse(const heddle_attention_problem& problem, const float* got, const double* want);

}  // namespace heddle
