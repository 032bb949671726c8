// attention.validate: a layer between host and backend that trusts neither. The backend gets shadow
// outputs and a workspace of exactly the promised size, filled with poison and surrounded by it;
// what it was not to touch must still be poison afterwards, also at the next call (a write after
// the return). Inputs and outputs are scanned for values that are not finite, and every Nth call is
// compared with kernels/reference on one kv head.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/attention/bound.h"
#include "framework/attention/shadow.h"

namespace heddle {

class ValidatedAttention final : public BoundAttention {
 public:
  // Both references outlive this. every >= 1: calls between two comparisons; the first is compared.
  ValidatedAttention(Binding& binding, const AttentionLabel& label, int64_t every);

  const heddle_attention_problem& problem() const override { return binding_.problem(); }
  // As without validation, so that memory plans stay; the backend gets a workspace of ours.
  size_t workspace_bytes() const override { return binding_.workspace_bytes(); }
  const std::string& backend() const override { return binding_.backend(); }
  const std::string& kernel() const override { return binding_.kernel(); }

  // Throws heddle::Error: plugin when the backend broke a rule, numerics when an input was not
  // finite before it was called. Both name step and layer where known, and the first element.
  void run(const heddle_attention_call& call) override;

 private:
  // An output and where the caller wants it.
  struct Output {
    ShadowTensor tensor;
    void* heddle_attention_call::*pointer = nullptr;  // nullptr: lse
  };

  std::string where() const;
  [[noreturn]] void blame(const std::string& what) const;
  void check_arguments(const heddle_attention_call& call) const;
  void check_inputs(const heddle_attention_call& call) const;
  void check_untouched();
  void deliver(const heddle_attention_call& call);
  void compare(const heddle_attention_call& call);

  Binding& binding_;
  const AttentionLabel& label_;
  int64_t every_, calls_ = 0, compared_ = 0;
  bool host_memory_;
  std::vector<Output> outputs_;
  GuardedBlock workspace_;
};

// Whether HEDDLE_VALIDATE asks for validation. Throws heddle::Error (environment) when its value is
// neither 0 nor 1.
bool validation_from_environment();

}  // namespace heddle
