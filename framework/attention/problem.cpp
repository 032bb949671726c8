// make_attention_problem(): from a layer's kind and a memory layout to the ABI's description.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/attention/attention.h"

namespace heddle {
namespace {

// Allocations promise more, but column offsets inside a projected row and int32 arrays of callers
// do not.
constexpr int64_t kMaxAlign = 16;

heddle_strides strides(int64_t len, int64_t row, int64_t head_dim) {
  return {len * row, row, head_dim};
}

// The largest power of two up to kMaxAlign that divides every row and head offset, in bytes.
uint32_t common_alignment(const heddle_attention_problem& p) {
  int64_t elements = p.head_dim;
  for (const heddle_strides* s : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    elements = std::gcd(elements, s->token);
  }
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  return static_cast<uint32_t>(std::min(bytes & -bytes, kMaxAlign));
}

}  // namespace

heddle_attention_problem make_attention_problem(const AttentionLayerKind& kind, uint32_t op,
                                                int64_t batch, int64_t q_len, int64_t k_len,
                                                const AttentionLayout& layout, bool with_lse) {
  const int64_t dim = kind.head_dim;
  heddle_attention_problem p{};
  p.struct_size = sizeof p;
  p.op = op;
  p.device_type = HEDDLE_DEVICE_CPU;
  p.dtype = HEDDLE_DTYPE_F32;
  p.mask = HEDDLE_MASK_CAUSAL;
  if (with_lse) p.flags |= HEDDLE_FLAG_LSE_OUT;
  if (op != HEDDLE_OP_DECODE) p.flags |= HEDDLE_FLAG_DETERMINISTIC;
  p.batch = batch;
  p.q_len = q_len;
  p.k_len = k_len;
  p.n_head = static_cast<int32_t>(kind.n_head);
  p.n_kv_head = static_cast<int32_t>(kind.n_kv_head);
  p.head_dim = static_cast<int32_t>(dim);
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  p.window_left = kind.window_left;
  p.q = strides(q_len, layout.q_row, dim);
  p.out = strides(q_len, layout.out_row, dim);
  if (op == HEDDLE_OP_DECODE) {
    p.k = p.v = strides(k_len, kind.n_kv_head * dim, dim);
  } else {
    p.k = strides(k_len, layout.k_row, dim);
    p.v = strides(k_len, layout.v_row, dim);
  }
  if (op == HEDDLE_OP_BACKWARD) {
    p.dout = strides(q_len, layout.dout_row, dim);
    p.dq = strides(q_len, layout.dq_row, dim);
    p.dk = strides(k_len, layout.dk_row, dim);
    p.dv = strides(k_len, layout.dv_row, dim);
  }
  p.lse_stride_batch = kind.n_head * q_len;
  p.lse_stride_head = q_len;
  p.align_bytes = common_alignment(p);
  p.required_features = heddle_attention_required_features(&p);
  return p;
}

}  // namespace heddle
