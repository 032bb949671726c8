// The operations of a training step, fused where a device gains from it. Pointers are on the
// device. N = B*T rows of a micro-batch, row n is token n % T of sequence n / T.
//
// Shapes: C n_embd, H n_head, K n_kv_head, D head_dim, V vocab_size, Vp = V rounded up to 64.
// Equations: docs/architecture.md, after karpathy/nanochat nanochat/gpt.py. rms(x) =
// x / sqrt(mean(x^2) + eps), eps = fp32 machine epsilon; rstd = 1 / sqrt(mean(x^2) + eps).
//
// Gradients named d... with "+=" accumulate; all others overwrite. Reductions over rows run over
// fixed blocks in fixed order: results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "framework/core/tensor.h"

namespace heddle {

inline constexpr float kRmsEps = 1.1920929e-7f;
inline constexpr int64_t kSmearChannels = 24;      // inputs of the smear gate
inline constexpr int64_t kValueGateChannels = 12;  // inputs of a value-embedding gate

// Positions of equal ids in a micro-batch, so that scatter-adds into embedding tables are
// deterministic and parallel: rows order[starts[u]] .. order[starts[u + 1] - 1], ascending, hold
// ids[u], u < unique. All arrays live in the caller's memory: order N, ids N, starts N + 1. A device
// that does not tell the host the number of ids has a bound in `unique`; entries beyond the last id
// hold no rows.
struct TokenIndex {
  int32_t* order = nullptr;
  int32_t* ids = nullptr;
  int32_t* starts = nullptr;
  int32_t* scratch = nullptr;  // V + 1 counters, zero between calls
  int64_t unique = 0;
  int64_t rows = 0;  // N
};

// y = a*x + sign*b*z; a or b nullptr: that factor is 1 (a) or the term is absent (b).
struct Mix {
  const float* a = nullptr;
  const float* b = nullptr;
  float sign = 1.0f;
};

// Rotary position embedding on halves and the norm that follows, applied in place to one of q, k.
//   (x1, x2) -> (x1 cos + x2 sin, -x1 sin + x2 cos), then scale * rms(.) with norm, else scale * x
struct RopeNorm {
  const float* cos = nullptr;  // (positions, D/2)
  const float* sin = nullptr;
  int64_t seq_len = 0;            // T: row n is at position pos0[n / T] + n % T
  const int32_t* pos0 = nullptr;  // (B) or nullptr for zeros
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool norm = true;
  float scale = 1.0f;
};

// What changes from step to step lies in device memory, so that a recorded step (Device::
// make_replay) reads the values of the day.
struct AdamWValues {
  float beta1 = 0, beta2 = 0, eps = 0;
  float decay = 0;           // 1 - lr * weight_decay
  float step_size = 0;       // lr / (1 - beta1^n)
  float inv_sqrt_bias2 = 0;  // (1 - beta2^n)^-1/2
  float grad_scale = 1;      // gradients are multiplied by it as they are read
};
struct AdamWStep {
  float lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  int64_t step = 1;  // n, counted from 1
  float grad_scale = 1.0f;
  AdamWValues values() const;
};
struct MuonValues {
  float lr = 0;  // with the factor sqrt(max(1, rows / cols))
  float momentum = 0;
  float weight_decay = 0;
  float grad_scale = 1;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // ---- memory
  virtual void zero(void* data, size_t bytes) = 0;
  virtual void copy(float* dst, const float* src, int64_t n) = 0;
  // dst += src
  virtual void add(float* dst, const float* src, int64_t n) = 0;
  // sums[i], on the host: of the squares of tensors[i], in fp64. Blocks once, until all are known.
  virtual void sums_of_squares(std::span<const std::span<const float>> tensors, double* sums) = 0;
  double sum_squares(const float* x, int64_t n);
  // between fp32 and bf16 (to nearest even)
  virtual void convert(const Matrix& from, const Matrix& to) = 0;

  // ---- matrix products, row-major: c = alpha * op(a) op(b) + beta * c; with beta 0 what c held
  // does not matter (NaN included)
  virtual void matmul(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c,
                      float alpha = 1.0f, float beta = 0.0f) = 0;
  // These n floats do not change before they are announced again, uploaded, or updated in
  // run_independent(), adamw() or a replay, and are about to be read by several products: a device
  // that computes in bf16 rounds them once for all.
  virtual void announce_weights(const float* weights, int64_t n) = 0;
  // Calls body(i, worker) for i in [0, n); bodies are independent and may run side by side, each
  // on one worker (< workers()), where their products use one thread.
  virtual void run_independent(int64_t n, const std::function<void(int64_t, int)>& body) = 0;
  virtual int workers() const = 0;

  // ---- tokens and embeddings
  virtual void index_tokens(const int32_t* tokens, int64_t n, int64_t vocab, TokenIndex* index) = 0;
  // Token ids outside of [0, vocab) are a heddle::Error, here and wherever tokens come in; on a
  // device that works behind the host's back when the host next waits for it.
  // u (N, C) = rms(wte[tokens]); rstd (N)
  virtual void embed_norm_forward(const int32_t* tokens, int64_t n, const Matrix& wte, float* u,
                                  float* rstd) = 0;
  // dwte += scatter of the norm's backward of du
  virtual void embed_norm_backward(const float* du, const float* u, const float* rstd,
                                   const TokenIndex& index, const Matrix& dwte) = 0;

  // x_t = u_t + lambda * gate_t * u_{t-1}, gate_t = sigmoid(w . u_t[0:24]); gate (N).
  // u_{-1} of sequence b is row b of prev (B, C), or absent (x_0 = u_0, gate_0 = 0) when nullptr.
  virtual void smear_forward(const float* u, int64_t batch, int64_t seq_len, int64_t channels,
                             const float* w, const float* lambda, const float* prev, float* x,
                             float* gate) = 0;
  // du overwritten, must not overlap dx; dw (24) +=, dlambda (1) +=
  virtual void smear_backward(const float* dx, const float* u, const float* gate, int64_t batch,
                              int64_t seq_len, int64_t channels, const float* w,
                              const float* lambda, float* du, float* dw, float* dlambda) = 0;

  // ---- residual stream
  // y = mix(x, z); h = rms(y). y may be x. h, y: (N, C); rstd (N).
  virtual void mix_norm_forward(const Mix& mix, const float* x, const float* z, int64_t n,
                                int64_t channels, float* y, float* h, float* rstd) = 0;
  // dy_total = dy + norm backward of dh (dy nullptr: none); dx = a*dy_total (dx may be dy);
  // dz += sign*b*dy_total; da (1) += sum dy_total*x; db (1) += sign * sum dy_total*z.
  // x, z, dz, da, db are only touched for factors that exist.
  virtual void mix_norm_backward(const Mix& mix, const float* dh, const float* h, const float* rstd,
                                 const float* dy, const float* x, const float* z, int64_t n,
                                 int64_t channels, float* dx, float* dz, float* da, float* db) = 0;

  // ---- attention inputs
  // x is a (N, heads*D) column slice; rstd (N, heads) is written when norm.
  virtual void rope_norm_forward(const RopeNorm& op, const Matrix& x, float* rstd) = 0;
  // dx in place; y is what forward left in x
  virtual void rope_norm_backward(const RopeNorm& op, const Matrix& y, const float* rstd,
                                  const Matrix& dx) = 0;
  // v (N, K*D) += gate[k] * ve[token]; gate (N, K) = 3 * sigmoid(h[0:12] . wg[k])
  virtual void value_embed_forward(const float* h, int64_t channels, const float* wg,
                                   const Matrix& ve, const int32_t* tokens, int64_t n_kv_head,
                                   const Matrix& v, float* gate) = 0;
  // dwg (K, 12) +=, dh[:, 0:12] +=, dve += scatter(gate * dv)
  virtual void value_embed_backward(const Matrix& dv, const float* h, int64_t channels,
                                    const float* wg, const Matrix& ve, const int32_t* tokens,
                                    const TokenIndex& index, int64_t n_kv_head, const float* gate,
                                    float* dwg, float* dh, const Matrix& dve) = 0;

  // ---- MLP activation, in place: x = relu(x)^2; backward: da *= 2 relu(x), relu(x) = sqrt(a)
  virtual void relu2_forward(float* x, int64_t n) = 0;
  virtual void relu2_backward(float* da, const float* a, int64_t n) = 0;

  // ---- head and loss
  // logits (N, V) = softcap of h w^T, cropped to V columns; softcap 0: none
  virtual void head_logits(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                           const Matrix& logits) = 0;
  // Cross-entropy in nats per row, 0 where target < 0; a target >= V is a heddle::Error. Logits
  // exist for one chunk of rows at a time, in scratch (chunk, Vp), used as plain memory: about 1024
  // rows are best on the CPU. argmax (N) optional. With dh: the gradient of the SUM of losses,
  // dh (N, C) overwritten, dw (Vp, C) +=; loss only when dh is nullptr.
  virtual void head_loss(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                         const int32_t* targets, const Matrix& scratch, float* loss,
                         int32_t* argmax, const Matrix* dh, const Matrix* dw) = 0;

  // ---- sums that do not depend on the order (train.reproducible)
  // high += the multiple of 2^-24 nearest to x, low += the multiple of 2^-64 nearest to what is left,
  // then x = 0. With |x| < 2^15 (else high becomes NaN) sums of up to 2^14 values are exact: both
  // stay below 2^53 of their units, so any order gives the same bits. What a value loses, at most
  // 2^-65, is its own affair.
  virtual void add_exact(float* x, double* high, double* low, int64_t n) = 0;
  // x = high + low, rounded
  virtual void round_exact(const double* high, const double* low, float* x, int64_t n) = 0;

  // ---- optimizer
  // `values` are device memory. p -= lr*wd*p; m, v: running mean and square;
  // p -= lr * mhat / (sqrt(vhat) + eps)
  virtual void adamw(const AdamWValues* values, const float* grad, float* p, float* m, float* v,
                     int64_t n) = 0;
  // Muon steps 1-3 on one (rows, cols) matrix: momentum, Nesterov, row equilibration, division by
  // 1.01*||.||_F: x = what the polar iteration starts from.
  virtual void muon_prepare(const MuonValues* values, const float* grad, float* momentum,
                            int64_t rows, int64_t cols, float* x) = 0;
  // Muon steps 5-7: norm snap, NorMuon variance reduction (second: rows values if rows >= cols,
  // else cols), cautious decay, update of p. x is spoilt.
  virtual void muon_finish(const MuonValues* values, float* x, float* second, float beta2,
                           int64_t rows, int64_t cols, float* p) = 0;
};

}  // namespace heddle
