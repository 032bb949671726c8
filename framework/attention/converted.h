// bf16 attention for a model that keeps fp32: tensors are rounded into the workspace, the plugin
// works there, and its results are widened. lse is fp32 either way.
#pragma once

#include <vector>

#include "framework/attention/attention.h"

namespace heddle {

// The same problem on contiguous bf16 tensors.
heddle_attention_problem bf16_problem(const heddle_attention_problem& problem);

class ConvertedAttention final : public BoundAttention {
 public:
  // `inner` is bound to bf16_problem(asked); both references outlive this.
  ConvertedAttention(BoundAttention& inner, const heddle_attention_problem& asked, Device& device);

  const heddle_attention_problem& problem() const override { return asked_; }
  size_t workspace_bytes() const override { return bytes_; }
  const std::string& backend() const override { return inner_.backend(); }
  const std::string& kernel() const override { return inner_.kernel(); }
  void run(const heddle_attention_call& call) override;

 private:
  // A tensor of the call: (rows, cols) with gaps in fp32, and where its bf16 lies in the workspace.
  struct Tensor {
    bool output = false;
    const void* heddle_attention_call::*input = nullptr;
    void* heddle_attention_call::*result = nullptr;
    int64_t rows = 0, cols = 0, ld = 0;
    size_t offset = 0;
  };
  void add(Tensor tensor, int64_t tokens, int64_t heads, const heddle_strides& strides);
  void add_input(const void* heddle_attention_call::*pointer, int64_t tokens, int64_t heads,
                 const heddle_strides& strides);
  void add_output(void* heddle_attention_call::*pointer, int64_t tokens, int64_t heads,
                  const heddle_strides& strides, bool read = false);

  BoundAttention& inner_;
  heddle_attention_problem asked_;
  Device& device_;
  std::vector<Tensor> tensors_;
  size_t bytes_ = 0;
};

}  // namespace heddle
