#include "framework/attention/validation.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "framework/attention/names.h"
#include "framework/attention/validation_reference.h"
#include "framework/core/error.h"

namespace heddle {

ValidatedAttention::ValidatedAttention(Binding& binding, const AttentionLabel& label, int64_t every)
    : binding_(binding),
      label_(label),
      every_(every),
      host_memory_(binding.problem().device_type == HEDDLE_DEVICE_CPU) {
  if (!host_memory_) return;
  const heddle_attention_problem& p = problem();
  const auto add = [&](const char* name, int64_t tokens, int64_t heads, const heddle_strides& s,
                       void* heddle_attention_call::*pointer) {
    outputs_.push_back({ShadowTensor(name, p.batch, tokens, heads, p.head_dim, s), pointer});
  };
  if (p.op == HEDDLE_OP_BACKWARD) {
    add("dq", p.q_len, p.n_head, p.dq, &heddle_attention_call::dq);
    add("dk", p.k_len, p.n_kv_head, p.dk, &heddle_attention_call::dk);
    add("dv", p.k_len, p.n_kv_head, p.dv, &heddle_attention_call::dv);
  } else {
    add("out", p.q_len, p.n_head, p.out, &heddle_attention_call::out);
    if (p.flags & HEDDLE_FLAG_LSE_OUT) {
      const heddle_strides s{p.lse_stride_batch, 1, p.lse_stride_head};
      outputs_.push_back({ShadowTensor("lse", p.batch, p.q_len, p.n_head, 1, s), nullptr});
    }
  }
  workspace_ = GuardedBlock(binding.answer().workspace_bytes, "the shadow of the workspace");
}

std::string ValidatedAttention::where() const {
  std::string text =
      fmt::format("attention.validate: backend '{}' (kernel {})", backend(), kernel());
  if (label_.step >= 0) text += fmt::format(", step {}", label_.step);
  if (label_.layer >= 0) text += fmt::format(", layer {}", label_.layer);
  return text + fmt::format(", call {} of {}", calls_, problem_text(problem()));
}

void ValidatedAttention::blame(const std::string& what) const {
  throw plugin_error(
      fmt::format("{}: {}", where(), what),
      fmt::format("heddle plugin check {} may show it on a small problem", backend()));
}

void ValidatedAttention::check_arguments(const heddle_attention_call& c) const {
  const heddle_attention_problem& p = problem();
  const bool queries = p.batch * p.q_len > 0, keys = p.batch * p.k_len > 0;
  const bool backward = p.op == HEDDLE_OP_BACKWARD;
  const auto need = [&](bool needed, const void* pointer, const char* name) {
    HEDDLE_CHECK(!needed || pointer != nullptr, fmt::format("{}: {} is NULL", where(), name));
  };
  need(queries, c.q, "q");
  need(keys, c.k, "k");
  need(keys, c.v, "v");
  need(queries, c.out, "out");
  need(queries && ((p.flags & HEDDLE_FLAG_LSE_OUT) != 0 || (backward && binding_.reads_lse())),
       c.lse, "lse");
  need(queries && backward, c.dout, "dout");
  need(queries && backward, c.dq, "dq");
  need(keys && backward, c.dk, "dk");
  need(keys && backward, c.dv, "dv");
  if (p.op != HEDDLE_OP_DECODE || !host_memory_) return;
  need(p.batch > 0, c.kv_len, "kv_len");
  for (int64_t b = 0; b < p.batch; ++b) {
    HEDDLE_CHECK(
        c.kv_len[b] >= 0 && c.kv_len[b] <= p.k_len,
        fmt::format("{}: kv_len[{}] is {}, expected 0 to {}", where(), b, c.kv_len[b], p.k_len));
  }
}

void ValidatedAttention::check_inputs(const heddle_attention_call& c) const {
  const heddle_attention_problem& p = problem();
  const auto scan = [&](const char* name, const void* data, int64_t tokens, int64_t heads,
                        int64_t dim, const heddle_strides& s, const int32_t* lengths = nullptr) {
    const std::string bad = first_not_finite(name, static_cast<const float*>(data), p.batch, tokens,
                                             heads, dim, s, lengths);
    if (bad.empty()) return;
    throw numerics_error(
        fmt::format("{}: the input {} before the backend was called", where(), bad),
        "the model gave it: look at the loss and the gradient norms of the steps before");
  };
  const int32_t* lengths = p.op == HEDDLE_OP_DECODE ? c.kv_len : nullptr;
  scan("q", c.q, p.q_len, p.n_head, p.head_dim, p.q);
  scan("k", c.k, p.k_len, p.n_kv_head, p.head_dim, p.k, lengths);
  scan("v", c.v, p.k_len, p.n_kv_head, p.head_dim, p.v, lengths);
  if (p.op != HEDDLE_OP_BACKWARD) return;
  scan("out", c.out, p.q_len, p.n_head, p.head_dim, p.out);
  scan("dout", c.dout, p.q_len, p.n_head, p.head_dim, p.dout);
  if (!binding_.reads_lse()) return;
  scan("lse", c.lse, p.q_len, p.n_head, 1, {p.lse_stride_batch, 1, p.lse_stride_head});
}

// Everything has been poison since the last call returned.
void ValidatedAttention::check_untouched() {
  for (const Output& o : outputs_) {
    const std::string damage = o.tensor.damage();
    if (!damage.empty()) blame(damage + ", after an earlier call had returned");
  }
  if (!workspace_.guard_damage().empty() || workspace_.first_touched() != workspace_.bytes()) {
    blame("the workspace is written after an earlier call had returned");
  }
}

void ValidatedAttention::deliver(const heddle_attention_call& call) {
  const std::string overrun = workspace_.guard_damage();
  workspace_.poison();
  if (!overrun.empty()) {
    blame(fmt::format("the workspace of {} bytes, as query() promised, is written at {}",
                      workspace_.bytes(), overrun));
  }
  for (Output& o : outputs_) {
    const std::string bad = o.tensor.first_bad();
    o.tensor.deliver(o.pointer != nullptr ? static_cast<float*>(call.*o.pointer) : call.lse);
    const std::string damage = o.tensor.damage();
    if (!damage.empty()) blame(damage);
    if (!bad.empty()) blame(bad + ", though every input is finite");
  }
}

void ValidatedAttention::compare(const heddle_attention_call& call) {
  const heddle_attention_problem& p = problem();
  const int64_t heads = p.batch * p.n_kv_head;
  if (heads == 0) return;
  const int64_t n = compared_++ % heads;
  const std::string difference = compare_with_reference(p, call, n / p.n_kv_head, n % p.n_kv_head);
  if (!difference.empty()) blame("differs from kernels/reference, first in " + difference);
}

void ValidatedAttention::run(const heddle_attention_call& caller) {
  ++calls_;
  check_arguments(caller);
  if (!host_memory_) return binding_.run(caller);
  check_inputs(caller);
  check_untouched();
  heddle_attention_call call = caller;
  for (const Output& o : outputs_) {
    if (o.pointer != nullptr) {
      call.*o.pointer = o.tensor.data();
    } else {
      call.lse = o.tensor.data();
    }
  }
  call.workspace = workspace_.data();
  // The binding asks for slack to align in; this block is aligned to every alignment already.
  call.workspace_bytes = binding_.workspace_bytes();
  binding_.run(call);
  deliver(caller);
  if ((calls_ - 1) % every_ == 0) compare(caller);
}

bool validation_from_environment() {
  const char* text = std::getenv("HEDDLE_VALIDATE");
  if (text == nullptr || std::string_view(text) == "0" || *text == '\0') return false;
  if (std::string_view(text) == "1") return true;
  throw environment_error("plugin", fmt::format("HEDDLE_VALIDATE is '{}', expected 0 or 1", text),
                          "set it to 1 or unset it");
}

}  // namespace heddle
