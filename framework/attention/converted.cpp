#include "framework/attention/converted.h"

#include "framework/core/error.h"

namespace heddle {
namespace {

constexpr uint32_t kAlign = 16;
constexpr size_t kPieceAlign = 256;

size_t round_up(size_t bytes) {
  return (bytes + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
}

heddle_strides contiguous(int64_t tokens, int64_t heads, int64_t dim) {
  return {tokens * heads * dim, heads * dim, dim};
}

}  // namespace

heddle_attention_problem bf16_problem(const heddle_attention_problem& problem) {
  heddle_attention_problem p = problem;
  p.dtype = HEDDLE_DTYPE_BF16;
  p.align_bytes = p.head_dim % 8 == 0 ? kAlign : 4;
  p.q = p.out = contiguous(p.q_len, p.n_head, p.head_dim);
  p.k = p.v = contiguous(p.k_len, p.n_kv_head, p.head_dim);
  if (p.op == HEDDLE_OP_BACKWARD) {
    p.dout = p.dq = p.q;
    p.dk = p.dv = p.k;
  }
  p.required_features = heddle_attention_required_features(&p);
  return p;
}

ConvertedAttention::ConvertedAttention(BoundAttention& inner, const heddle_attention_problem& asked,
                                       Device& device)
    : inner_(inner), asked_(asked), device_(device), bytes_(round_up(inner.workspace_bytes())) {
  const heddle_attention_problem& p = asked_;
  add_input(&heddle_attention_call::q, p.q_len, p.n_head, p.q);
  add_input(&heddle_attention_call::k, p.k_len, p.n_kv_head, p.k);
  add_input(&heddle_attention_call::v, p.k_len, p.n_kv_head, p.v);
  const bool backward = p.op == HEDDLE_OP_BACKWARD;
  add_output(&heddle_attention_call::out, p.q_len, p.n_head, p.out, backward);
  if (!backward) return;
  add_input(&heddle_attention_call::dout, p.q_len, p.n_head, p.dout);
  add_output(&heddle_attention_call::dq, p.q_len, p.n_head, p.dq);
  add_output(&heddle_attention_call::dk, p.k_len, p.n_kv_head, p.dk);
  add_output(&heddle_attention_call::dv, p.k_len, p.n_kv_head, p.dv);
}

void ConvertedAttention::add(Tensor tensor, int64_t tokens, int64_t heads,
                             const heddle_strides& strides) {
  HEDDLE_CHECK(strides.batch == tokens * strides.token && strides.head == asked_.head_dim,
               "attention in bf16: sequences or heads are not neighbours");
  tensor.rows = asked_.batch * tokens;
  tensor.cols = heads * asked_.head_dim;
  tensor.ld = strides.token;
  tensor.offset = bytes_;
  bytes_ += round_up(static_cast<size_t>(tensor.rows * tensor.cols) * dtype_size(DType::kBF16));
  tensors_.push_back(tensor);
}
void ConvertedAttention::add_input(const void* heddle_attention_call::*pointer, int64_t tokens,
                                   int64_t heads, const heddle_strides& strides) {
  Tensor tensor;
  tensor.input = pointer;
  add(tensor, tokens, heads, strides);
}
// `read`: out of a backward pass, which is an input in the place of an output.
void ConvertedAttention::add_output(void* heddle_attention_call::*pointer, int64_t tokens,
                                    int64_t heads, const heddle_strides& strides, bool read) {
  Tensor tensor;
  tensor.result = pointer;
  tensor.output = !read;
  add(tensor, tokens, heads, strides);
}

void ConvertedAttention::run(const heddle_attention_call& caller) {
  heddle_attention_call call = caller;
  auto* base = static_cast<char*>(caller.workspace);
  call.workspace_bytes = inner_.workspace_bytes();
  Ops& ops = device_.ops();
  const auto wide = [&](const Tensor& t) {
    void* data = t.input != nullptr ? const_cast<void*>(caller.*t.input) : caller.*t.result;
    return Matrix{data, t.rows, t.cols, t.ld, DType::kF32};
  };
  const auto narrow = [&](const Tensor& t) {
    return Matrix{base + t.offset, t.rows, t.cols, t.cols, DType::kBF16};
  };
  for (const Tensor& t : tensors_) {
    if (t.input != nullptr) call.*t.input = base + t.offset;
    if (t.result != nullptr) call.*t.result = base + t.offset;
    if (!t.output) ops.convert(wide(t), narrow(t));
  }
  inner_.run(call);
  for (const Tensor& t : tensors_) {
    if (t.output) ops.convert(narrow(t), wide(t));
  }
}

}  // namespace heddle
