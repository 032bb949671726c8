// A problem bound to a plugin's context: what the model runs every step.
#pragma once

#include <array>
#include <string>

#include "framework/attention/attention.h"
#include "framework/attention/plugin.h"

namespace heddle {

class Binding final : public BoundAttention {
 public:
  // `asked` is the problem before the plugin had its say about determinism: what a later bind_*()
  // compares with.
  Binding(const PluginContext& context, Device& device, const heddle_attention_problem& asked,
          const heddle_attention_problem& problem, const QueryAnswer& answer);

  const heddle_attention_problem& problem() const override { return problem_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  const std::string& backend() const override { return backend_; }
  const std::string& kernel() const override { return answer_.kernel; }
  const QueryAnswer& answer() const { return answer_; }
  // Whether BACKWARD reads lse: otherwise the caller's may hold anything.
  bool reads_lse() const { return !context_.has(HEDDLE_PROP_NO_LSE); }
  void run(const heddle_attention_call& call) override;

  bool answers(const heddle_attention_problem& asked) const;

 private:
  [[noreturn]] void fail(uint32_t status) const;
  void check_pointers(const heddle_attention_call& call) const;

  const PluginContext& context_;
  Device& device_;
  heddle_attention_problem asked_, problem_;
  QueryAnswer answer_;
  std::string backend_;
  size_t workspace_bytes_ = 0;
  std::array<char, 512> text_{};
};

}  // namespace heddle
