#include "plugins/conformance/layout.h"

#include <algorithm>

#include "plugins/conformance/dtype.h"

namespace heddle::conformance {
namespace {

constexpr int64_t kRowGap = 3;  // elements behind the columns of a packed row

struct Extent {
  int64_t batch, tokens, heads, dim;
};

heddle_strides contiguous(const Extent& e) {
  return {e.tokens * e.heads * e.dim, e.heads * e.dim, e.dim};
}

// Gaps that differ from tensor to tensor and are odd.
heddle_strides padded(const Extent& e, int64_t tensor) {
  const int64_t head = e.dim + 1 + tensor % 3;
  const int64_t token = e.heads * head + 3 + 2 * (tensor % 4);
  return {e.tokens * token + 5 + 2 * (tensor % 5), token, head};
}

heddle_strides head_major(const Extent& e) {
  return {e.heads * e.tokens * e.dim, e.dim, e.tokens * e.dim};
}

int64_t last_element(const Placement& p, const Extent& e) {
  if (e.batch == 0 || e.tokens == 0) return p.offset;
  return p.index(e.batch - 1, e.tokens - 1, e.heads - 1) + e.dim;
}

class Builder {
 public:
  explicit Builder(const Case& c) : c_(c) {}

  // A tensor with a storage of its own.
  void add(Placement& p, const char* label, int64_t tokens, int64_t heads, bool is_output) {
    const Extent e{c_.batch, tokens, heads, c_.head_dim};
    const auto number = static_cast<int64_t>(layout.storages.size());
    p.strides = c_.layout == Layout::kPadded      ? padded(e, number)
                : c_.layout == Layout::kHeadMajor ? head_major(e)
                                                  : contiguous(e);
    p.storage = static_cast<int>(number);
    layout.storages.push_back({label, last_element(p, e), is_output});
  }

  struct Column {
    Placement* place;
    int64_t heads;
  };
  // Tensors as columns of one storage's rows.
  void add_columns(const char* label, int64_t tokens, const std::vector<Column>& columns,
                   bool is_output) {
    const int64_t unit = std::max<int64_t>(1, c_.align / element_bytes(c_.dtype));
    const auto aligned = [&](int64_t n) { return (n + unit - 1) / unit * unit; };
    int64_t row = 0;
    for (const Column& column : columns) {
      column.place->offset = row;
      row = aligned(row + column.heads * c_.head_dim);
    }
    row = aligned(row + kRowGap);
    int64_t elements = 0;
    for (const Column& column : columns) {
      Placement& p = *column.place;
      p.storage = static_cast<int>(layout.storages.size());
      p.strides = {tokens * row, row, c_.head_dim};
      elements = std::max(elements, last_element(p, {c_.batch, tokens, column.heads, c_.head_dim}));
    }
    layout.storages.push_back({label, elements, is_output});
  }

  void add_lse(int64_t gap) {
    layout.lse_stride_head = c_.q_len + gap;
    layout.lse_stride_batch = c_.n_head * layout.lse_stride_head + gap;
    if (c_.batch == 0 || c_.q_len == 0) return;
    layout.lse_elements = (c_.batch - 1) * layout.lse_stride_batch +
                          (c_.n_head - 1) * layout.lse_stride_head + c_.q_len;
  }

  CallLayout layout;

 private:
  const Case& c_;
};

void add_triple(const Case& c, Builder& b, Placement& q, Placement& k, Placement& v, bool grads) {
  const char* all = grads ? "dq, dk, dv" : "q, k, v";
  const char* pair = grads ? "dk, dv" : "k, v";
  if (c.layout != Layout::kPacked) {
    b.add(q, grads ? "dq" : "q", c.q_len, c.n_head, grads);
    b.add(k, grads ? "dk" : "k", c.k_len, c.n_kv_head, grads);
    b.add(v, grads ? "dv" : "v", c.k_len, c.n_kv_head, grads);
  } else if (c.q_len == c.k_len && c.op != HEDDLE_OP_DECODE) {
    b.add_columns(all, c.q_len, {{&q, c.n_head}, {&k, c.n_kv_head}, {&v, c.n_kv_head}}, grads);
  } else {
    b.add_columns(grads ? "dq" : "q", c.q_len, {{&q, c.n_head}}, grads);
    b.add_columns(pair, c.k_len, {{&k, c.n_kv_head}, {&v, c.n_kv_head}}, grads);
  }
}

void add_query_like(const Case& c, Builder& b, Placement& p, const char* label, bool is_output) {
  if (c.layout == Layout::kPacked) {
    b.add_columns(label, c.q_len, {{&p, c.n_head}}, is_output);
  } else {
    b.add(p, label, c.q_len, c.n_head, is_output);
  }
}

}  // namespace

CallLayout lay_out(const Case& c) {
  Builder b(c);
  CallLayout& l = b.layout;
  const bool backward = c.op == HEDDLE_OP_BACKWARD;
  add_triple(c, b, l.q, l.k, l.v, false);
  add_query_like(c, b, l.out, "out", !backward);
  if (backward) {
    add_query_like(c, b, l.dout, "dout", false);
    add_triple(c, b, l.dq, l.dk, l.dv, true);
  }
  if (backward || c.lse) b.add_lse(c.layout == Layout::kPadded ? 3 : 0);
  return l;
}

heddle_attention_problem make_problem(const Case& c, const CallLayout& layout) {
  heddle_attention_problem p{};
  p.struct_size = sizeof p;
  p.op = c.op;
  p.device_type = HEDDLE_DEVICE_CPU;
  p.dtype = c.dtype;
  p.mask = c.causal ? HEDDLE_MASK_CAUSAL : HEDDLE_MASK_NONE;
  p.flags = c.lse && c.op != HEDDLE_OP_BACKWARD ? HEDDLE_FLAG_LSE_OUT : 0u;
  if (c.deterministic) p.flags |= HEDDLE_FLAG_DETERMINISTIC;
  p.align_bytes = c.align;
  p.batch = c.batch;
  p.q_len = c.q_len;
  p.k_len = c.k_len;
  p.n_head = static_cast<int32_t>(c.n_head);
  p.n_kv_head = static_cast<int32_t>(c.n_kv_head);
  p.head_dim = static_cast<int32_t>(c.head_dim);
  p.scale = scale_of(c);
  p.window_left = c.window_left;
  p.q_pos0 = c.q_pos0;
  p.k_pos0 = c.k_pos0;
  p.q = layout.q.strides;
  p.k = layout.k.strides;
  p.v = layout.v.strides;
  p.out = layout.out.strides;
  p.dout = layout.dout.strides;
  p.dq = layout.dq.strides;
  p.dk = layout.dk.strides;
  p.dv = layout.dv.strides;
  p.lse_stride_batch = layout.lse_stride_batch;
  p.lse_stride_head = layout.lse_stride_head;
  p.required_features = heddle_attention_required_features(&p);
  return p;
}

}  // namespace heddle::conformance
