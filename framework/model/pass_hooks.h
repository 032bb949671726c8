// What a pass over the model tells its owner, so that parameters can arrive and gradients can leave
// while the pass goes on. Parts of the model in forward order: kEmbeddingPart, block 0 ..
// n_layer - 1, and n_layer, the head. The lambdas and the smear gate belong to the embeddings: their
// gradients are complete with them, and forward reads them from there on.
#pragma once

#include <cstdint>

namespace heddle {

inline constexpr int64_t kEmbeddingPart = -1;

class PassHooks {
 public:
  virtual ~PassHooks() = default;

  // Parameters of `part` are about to be read for the first time in a forward pass.
  virtual void before_forward(int64_t part) = 0;
  // Backward is about to add to the gradients of `part`; then: has done so for this pass.
  virtual void before_backward(int64_t part) = 0;
  virtual void after_backward(int64_t part) = 0;
  // Between two operations of a backward pass.
  virtual void poll() = 0;
  // None of these calls does anything: a recorded pass may leave them out.
  virtual bool idle() const { return false; }
};

}  // namespace heddle
