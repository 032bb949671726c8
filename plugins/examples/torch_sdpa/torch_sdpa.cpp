// torch_sdpa: LibTorch's scaled-dot-product attention as a Heddle backend, to show what wrapping a
// library that nobody here wrote takes. Written against LibTorch 1.13 (Debian 12).
//
// What the library lacks, and what is done about it:
//   no scale argument      q is multiplied by scale * sqrt(D) first; it divides by sqrt(D)
//   no window, no offsets  a boolean mask of T x S where plain causal does not do
//   top-left alignment     its is_causal is used only where both alignments agree
//   NaN for empty rows     rows that see no key never reach it (zeroing its NaN would come too
//   late:
//                          its backward multiplies by it)
//   no lse                 LSE_OUT is refused, and backward computes forward again: NO_LSE
//   no grouped heads       keys and values are expanded; its backward sums over the group
//   no cache lengths       decode goes row by row over the valid part of the cache
//   its own memory, threads, order of sums: ALLOCATES, OWN_THREADS, and DETERMINISTIC is refused
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <heddle/heddle_attention.hpp>
#include <string>
#include <vector>

namespace {

using heddle::attention::Answer;
using heddle::attention::Call;
using heddle::attention::Host;
using heddle::attention::Problem;
using heddle::attention::Range;

// (batch, head, token, dim), which is the library's order, over the host's memory.
at::Tensor view(const void* data, const heddle_strides& s, int64_t batch, int64_t heads,
                int64_t tokens, int64_t dim) {
  return at::from_blob(const_cast<void*>(data), {batch, heads, tokens, dim},
                       {s.batch, s.head, s.token, 1}, at::kFloat);
}

// Positions of a call or of one row of a cache: query i stands at key `first + i`.
struct Window {
  int64_t first, q_len, k_len, left;
  bool causal;

  Range keys(int64_t i) const {
    const int64_t self = first + i;
    return {left < 0 ? 0 : std::clamp<int64_t>(self - left, 0, k_len),
            causal ? std::clamp<int64_t>(self + 1, 0, k_len) : k_len};
  }
  // Queries that see a key; they lie side by side.
  Range rows() const {
    Range r{0, q_len};
    while (r.begin < r.end && keys(r.begin).empty()) ++r.begin;
    while (r.end > r.begin && keys(r.end - 1).empty()) --r.end;
    return r;
  }
  // Which (query, key) pairs of `rows` are visible; undefined when the library can do without.
  at::Tensor mask(Range r, bool* plain_causal) const {
    *plain_causal = false;
    const Range top = keys(r.begin), bottom = keys(r.end - 1);
    const bool no_window = left < 0 || bottom.begin == 0;
    if (no_window && top.end == k_len) return {};
    // Its own causal mask lets query i see keys 0 to i.
    if (no_window && first + r.begin == 0 && r.end - r.begin <= k_len) {
      *plain_causal = true;
      return {};
    }
    const at::Tensor q = at::arange(first + r.begin, first + r.end, at::kLong).unsqueeze(1);
    const at::Tensor k = at::arange(k_len, at::kLong).unsqueeze(0);
    at::Tensor seen = at::ones({r.end - r.begin, k_len}, at::kBool);
    if (causal) seen = seen.logical_and(k <= q);
    if (left >= 0) seen = seen.logical_and(q - k <= left);
    return seen;
  }
};

// softmax(scale q k') v of the rows that see something.
at::Tensor attend(const Problem& p, const Window& w, Range rows, const at::Tensor& q,
                  const at::Tensor& k, const at::Tensor& v) {
  const double factor = static_cast<double>(p->scale) * std::sqrt(static_cast<double>(p->head_dim));
  const auto grouped = [&](const at::Tensor& x) {
    if (p.group() == 1) return x;
    return x.unsqueeze(2)
        .expand({x.size(0), x.size(1), p.group(), x.size(2), x.size(3)})
        .reshape({x.size(0), p->n_head, x.size(2), x.size(3)});
  };
  bool causal = false;
  const at::Tensor mask = w.mask(rows, &causal);
  return std::get<0>(at::_scaled_dot_product_attention(
      q.narrow(2, rows.begin, rows.end - rows.begin) * factor, grouped(k), grouped(v),
      mask.defined() ? c10::optional<at::Tensor>(mask) : c10::nullopt, 0.0, false, causal));
}

class TorchSdpa {
 public:
  TorchSdpa(Host, const heddle_device&) {}

  void query(const Problem& p, Answer& answer) const {
    answer.require(p->dtype == HEDDLE_DTYPE_F32, HEDDLE_REASON_DTYPE, "dtype", p->dtype, "==1",
                   "run the CPU device in fp32");
    answer.require(!p.wants_lse(), HEDDLE_REASON_FEATURE, "flags", p->flags, "without LSE_OUT",
                   "its attention returns no lse");
    answer.require((p->flags & HEDDLE_FLAG_DETERMINISTIC) == 0, HEDDLE_REASON_DETERMINISM, "flags",
                   p->flags, "without DETERMINISTIC", "its sums depend on its threads");
    if (!answer.accepted()) return;
    // It holds all scores at once, several times over.
    const int64_t rows = p->batch * p->n_head * p->q_len;
    const int64_t most = rows > 0 ? kMostScores / rows : p->k_len;
    answer.require(p->k_len <= most, HEDDLE_REASON_LENGTH, "k_len", p->k_len,
                   "<=" + std::to_string(most), "lower the batch, or use a backend with tiles");
    if (!answer.accepted()) return;
    answer.estimate_us(estimate_us(p));
    answer.kernel(p->op == HEDDLE_OP_BACKWARD ? "torch_sdpa_autograd" : "torch_sdpa_math");
  }

  void forward(const Call& call) const {
    const at::NoGradGuard no_grad;
    const Problem& p = call.problem;
    const heddle_attention_call& c = call.raw();
    at::Tensor out = view(c.out, p->out, p->batch, p->n_head, p->q_len, p->head_dim);
    const Window w = window(p);
    const Range rows = w.rows();
    clear_other_rows(out, rows);
    if (rows.empty()) return;
    out.narrow(2, rows.begin, rows.end - rows.begin)
        .copy_(attend(p, w, rows, q(call), k(call), v(call)));
  }

  void backward(const Call& call) const {
    const Problem& p = call.problem;
    const heddle_attention_call& c = call.raw();
    at::Tensor dq = view(c.dq, p->dq, p->batch, p->n_head, p->q_len, p->head_dim);
    at::Tensor dk = view(c.dk, p->dk, p->batch, p->n_kv_head, p->k_len, p->head_dim);
    at::Tensor dv = view(c.dv, p->dv, p->batch, p->n_kv_head, p->k_len, p->head_dim);
    const Window w = window(p);
    const Range rows = w.rows();
    {
      const at::NoGradGuard no_grad;
      clear_other_rows(dq, rows);
      if (rows.empty()) {
        dk.zero_();
        dv.zero_();
        return;
      }
    }
    const at::Tensor dout = view(c.dout, p->dout, p->batch, p->n_head, p->q_len, p->head_dim);
    const std::vector<at::Tensor> leaves = {q(call).requires_grad_(), k(call).requires_grad_(),
                                            v(call).requires_grad_()};
    const at::AutoGradMode grad(true);
    const at::Tensor out = attend(p, w, rows, leaves[0], leaves[1], leaves[2]);
    const auto gradients =
        torch::autograd::grad({out}, leaves, {dout.narrow(2, rows.begin, rows.end - rows.begin)});
    const at::NoGradGuard no_grad;
    dq.copy_(gradients[0]);
    dk.copy_(gradients[1]);
    dv.copy_(gradients[2]);
  }

  void decode(const Call& call) const {
    const at::NoGradGuard no_grad;
    const Problem& p = call.problem;
    const heddle_attention_call& c = call.raw();
    at::Tensor out = view(c.out, p->out, p->batch, p->n_head, p->q_len, p->head_dim);
    for (int64_t b = 0; b < p->batch; ++b) {
      const int64_t len = call.kv_len(b);
      Window w{len - p->q_len, p->q_len, len, left(p), p.causal()};
      const Range rows = w.rows();
      at::Tensor out_row = out.narrow(0, b, 1);
      clear_other_rows(out_row, rows);
      if (rows.empty()) continue;
      // Keys before the first one that any of these rows sees may hold anything.
      const int64_t skip = w.keys(rows.begin).begin;
      w.first -= skip;
      w.k_len -= skip;
      const auto cache = [&](const at::Tensor& x) {
        return x.narrow(0, b, 1).narrow(2, skip, w.k_len);
      };
      out_row.narrow(2, rows.begin, rows.end - rows.begin)
          .copy_(attend(p, w, rows, q(call).narrow(0, b, 1), cache(k(call)), cache(v(call))));
    }
  }

 private:
  static at::Tensor q(const Call& call) {
    const Problem& p = call.problem;
    return view(call.raw().q, p->q, p->batch, p->n_head, p->q_len, p->head_dim);
  }
  static at::Tensor k(const Call& call) {
    const Problem& p = call.problem;
    return view(call.raw().k, p->k, p->batch, p->n_kv_head, p->k_len, p->head_dim);
  }
  static at::Tensor v(const Call& call) {
    const Problem& p = call.problem;
    return view(call.raw().v, p->v, p->batch, p->n_kv_head, p->k_len, p->head_dim);
  }

  // A window wider than any position is none.
  static int64_t left(const Problem& p) {
    return p->window_left < (INT64_C(1) << 61) ? p->window_left : -1;
  }
  static Window window(const Problem& p) {
    return {p->q_pos0 - p->k_pos0, p->q_len, p->k_len, left(p), p.causal()};
  }

  static void clear_other_rows(at::Tensor& x, Range rows) {
    if (rows.empty()) {
      x.zero_();
      return;
    }
    x.narrow(2, 0, rows.begin).zero_();
    x.narrow(2, rows.end, x.size(2) - rows.end).zero_();
  }

  static constexpr int64_t kMostScores = int64_t{1} << 28;  // 1 GiB

  // It computes and stores every pair, visible or not; read off `heddle plugin bench`.
  static double estimate_us(const Problem& p) {
    const double pairs = static_cast<double>(p->batch) * p->n_head * static_cast<double>(p->q_len) *
                         static_cast<double>(p->k_len);
    const double per_pair = 2e-3 + 1e-4 * p->head_dim;
    return 60.0 + pairs * per_pair * (p->op == HEDDLE_OP_BACKWARD ? 3.5 : 1.0);
  }
};

}  // namespace

HEDDLE_ATTENTION_PLUGIN(TorchSdpa, {.name = "torch_sdpa",
                                    .version = "1.13",
                                    .description = "LibTorch's scaled-dot-product attention",
                                    .properties = HEDDLE_PROP_ALLOCATES | HEDDLE_PROP_OWN_THREADS |
                                                  HEDDLE_PROP_NO_LSE});
