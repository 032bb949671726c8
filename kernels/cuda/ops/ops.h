// The operations of a training step on CUDA that are not matrix products: enqueueing functions.
// Every pointer is the device's; every function returns what the runtime says about its launches.
//
// The same bits every time: sums over rows are cut into pieces whose number depends on the shape
// only, each piece is summed in a fixed order and the pieces are added in order, in fp64. Nothing
// adds floats atomically. Equations: docs/architecture.md; the CPU's are kernels/cpu/ops.
//
// Letters: N rows (tokens), C channels, H heads, K kv heads, D head_dim, V vocabulary. Matrices are
// row-major with `ld` elements from row to row, or dense where no ld is given. `workspace` is
// memory of at least the bytes that the function of the same name with _workspace tells; it may be
// used again by the next operation on the stream.
//
// Ids outside of the vocabulary raise *status to 1 and count as id 0: a kernel cannot throw.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace heddle::kernels::cuda::ops {

inline constexpr int kSmearInputs = 24;  // channels that the smear gate reads
inline constexpr int kGateInputs = 12;   // channels that a value-embedding gate reads

// ---- elements (elementwise.cu)

[[nodiscard]] cudaError_t add(float* dst, const float* src, int64_t n,
                              cudaStream_t stream);                                 // dst += src
[[nodiscard]] cudaError_t relu2_forward(float* x, int64_t n, cudaStream_t stream);  // x = relu(x)^2
[[nodiscard]] cudaError_t relu2_backward(float* da, const float* a, int64_t n, cudaStream_t stream);
// z (rows, cols) = cap * tanh(z / cap)
[[nodiscard]] cudaError_t softcap(float* z, int64_t ld, int64_t rows, int64_t cols, float cap,
                                  cudaStream_t stream);

// Between fp32 and bf16 (__nv_bfloat16, rounded to nearest even).
[[nodiscard]] cudaError_t to_bf16(const float* from, int64_t from_ld, void* to, int64_t to_ld,
                                  int64_t rows, int64_t cols, cudaStream_t stream);
[[nodiscard]] cudaError_t from_bf16(const void* from, int64_t from_ld, float* to, int64_t to_ld,
                                    int64_t rows, int64_t cols, cudaStream_t stream);

// sums[i] = sum of squares of x[i]. The list travels as the argument of a launch.
inline constexpr int kSquareTensors = 128;
struct Squares {
  int count = 0;
  const float* x[kSquareTensors];
  int64_t n[kSquareTensors];
};
size_t sums_of_squares_workspace(const Squares& op);
[[nodiscard]] cudaError_t sums_of_squares(const Squares& op, double* sums, void* workspace,
                                          cudaStream_t stream);

// high += the multiple of 2^-24 nearest to x (NaN where |x| >= 2^15), low += the multiple of 2^-64
// nearest to what is left, then x = 0; and x = high + low.
[[nodiscard]] cudaError_t add_exact(float* x, double* high, double* low, int64_t n,
                                    cudaStream_t stream);
[[nodiscard]] cudaError_t round_exact(const double* high, const double* low, float* x, int64_t n,
                                      cudaStream_t stream);

// own = x_0 + x_1 + ..., added from left to right: x_rank is own, those of the other ranks lie in
// `others` in rank order, `stride` elements apart.
cudaError_t sum_in_rank_order(float* own, const float* others, int64_t stride, int64_t n, int rank,
                              int ranks, cudaStream_t stream);
cudaError_t sum_in_rank_order(double* own, const double* others, int64_t stride, int64_t n,
                              int rank, int ranks, cudaStream_t stream);

// Read from device memory when the kernel runs, like Muon's: a graph has the pointer only.
struct AdamW {
  float beta1, beta2, eps;
  float decay;           // 1 - lr * weight_decay
  float step_size;       // lr / (1 - beta1^n)
  float inv_sqrt_bias2;  // (1 - beta2^n)^-1/2
  float grad_scale;
};
[[nodiscard]] cudaError_t adamw(const AdamW* op, const float* grad, float* p, float* m, float* v,
                                int64_t n, cudaStream_t stream);

// ---- embeddings (embedding.cu)

// Rows of equal tokens: rows order[starts[u]] .. order[starts[u + 1] - 1], ascending, hold ids[u],
// u < bound. `bound` is min(N, V), known to the host; entries beyond the last id have no rows.
struct TokenRows {
  int32_t *order, *ids, *starts;  // N, N, N + 1
  int64_t bound;
};
// counters: V + 1, zero between calls.
size_t index_tokens_workspace(int64_t n);
[[nodiscard]] cudaError_t index_tokens(const int32_t* tokens, int64_t n, int64_t vocab,
                                       const TokenRows& rows, int32_t* counters, int* status,
                                       void* workspace, cudaStream_t stream);

// u (N, C) = rms(table[tokens]), rstd (N).
struct EmbedNorm {
  const int32_t* tokens;
  const float* table;
  int64_t table_ld, vocab, n, channels;
  float eps;
  float *u, *rstd;
  int* status;
};
[[nodiscard]] cudaError_t embed_norm_forward(const EmbedNorm& op, cudaStream_t stream);

// dtable[ids[i]] += sum over its rows of rstd * (du - u * mean(du . u)).
struct EmbedNormGrad {
  const float *du, *u, *rstd;
  TokenRows rows;
  int64_t n, channels;
  float* dtable;
  int64_t dtable_ld;
};
size_t embed_norm_backward_workspace(int64_t n);
[[nodiscard]] cudaError_t embed_norm_backward(const EmbedNormGrad& op, void* workspace,
                                              cudaStream_t stream);

// gate (N, K) = 3 * sigmoid(h[0:12] . wg[k]); v (N, K * D) += gate * table[token].
struct ValueEmbed {
  const float* h;
  int64_t channels;
  const float *wg, *table;
  int64_t table_ld, vocab;
  const int32_t* tokens;
  int64_t n, n_kv_head, head_dim;
  float* v;
  int64_t v_ld;
  float* gate;
  int* status;
};
[[nodiscard]] cudaError_t value_embed_forward(const ValueEmbed& op, cudaStream_t stream);

// dwg (K, 12) +=, dh[:, 0:12] +=, dtable[ids[i]] += gate * dv.
struct ValueEmbedGrad {
  const float* dv;
  int64_t dv_ld;
  const float* h;
  int64_t channels;
  const float *wg, *table;
  int64_t table_ld, vocab;
  const int32_t* tokens;
  TokenRows rows;
  int64_t n, n_kv_head, head_dim;
  const float* gate;
  float *dwg, *dh, *dtable;
  int64_t dtable_ld;
};
size_t value_embed_backward_workspace(int64_t n, int64_t n_kv_head);
[[nodiscard]] cudaError_t value_embed_backward(const ValueEmbedGrad& op, void* workspace,
                                               cudaStream_t stream);

// ---- residual stream (norms.cu)

// x_t = u_t + lambda * gate_t * u_{t-1}; row n is token n % seq_len. The row before the first of
// sequence b is row b of prev, or absent when prev is nullptr (gate 0).
struct Smear {
  const float *u, *w, *lambda, *prev;
  int64_t n, seq_len, channels;
  float *x, *gate;
};
[[nodiscard]] cudaError_t smear_forward(const Smear& op, cudaStream_t stream);

// du is overwritten and must not overlap dx; dw (24) +=, dlambda (1) +=.
struct SmearGrad {
  const float *dx, *u, *gate, *w, *lambda;
  int64_t n, seq_len, channels;
  float *du, *dw, *dlambda;
};
size_t smear_backward_workspace(int64_t n);
[[nodiscard]] cudaError_t smear_backward(const SmearGrad& op, void* workspace, cudaStream_t stream);

// y = a * x + sign * b * z (a nullptr: 1; z nullptr: no such term), h = rms(y), rstd (N). y may be
// x; y nullptr: nothing is mixed, h = rms(x).
struct MixNorm {
  const float *x, *z, *a, *b;
  float sign;
  int64_t n, channels;
  float eps;
  float *y, *h, *rstd;
};
[[nodiscard]] cudaError_t mix_norm_forward(const MixNorm& op, cudaStream_t stream);

// total = dy + rstd * (dh - h * mean(dh . h)), dy nullptr: none; dx = a * total (dx may be dy); with
// b: dz += sign * b * total, db += sign * sum total . z; with a: da += sum total . x.
struct MixNormGrad {
  const float *dh, *h, *rstd, *dy, *x, *z, *a, *b;
  float sign;
  int64_t n, channels;
  float *dx, *dz, *da, *db;
};
size_t mix_norm_backward_workspace(int64_t n);
[[nodiscard]] cudaError_t mix_norm_backward(const MixNormGrad& op, void* workspace,
                                            cudaStream_t stream);

// ---- attention inputs (rope.cu)

// x (N, heads * D), in place: rotated halves, then scale * rms(.) when norm, else scale * (.).
// Row n is at position pos0[n / seq_len] + n % seq_len (pos0 nullptr: zeros); cos, sin
// (positions, D / 2); rstd (N, heads).
struct Rope {
  const float *cos, *sin;
  int64_t seq_len;
  const int32_t* pos0;
  int64_t n, heads, head_dim;
  bool norm;
  float scale, eps;
  float* x;
  int64_t ld;
  float* rstd;
};
[[nodiscard]] cudaError_t rope_norm_forward(const Rope& op, cudaStream_t stream);
// op.x, op.ld: the gradient, in place; y: what the forward left.
[[nodiscard]] cudaError_t rope_norm_backward(const Rope& op, const float* y, int64_t y_ld,
                                             cudaStream_t stream);

// ---- loss (loss.cu)

// Rows of raw logits z. Per row: loss = logsumexp(cap(z)) - cap(z)[target] in nats, 0 where target
// < 0; cap(z) = softcap * tanh(z / softcap), or z when softcap is 0. argmax may be nullptr; the
// lowest index wins a tie. d loss / d z goes to `gradient`, which may be z itself when fp32.
enum class Gradient { kNone, kF32, kBf16 };
struct LossRows {
  const float* z;
  int64_t ld, rows, vocab;
  float softcap;
  const int32_t* targets;
  float* loss;
  int32_t* argmax;
  Gradient kind;
  void* gradient;
  int64_t gradient_ld;
  int* status;
};
[[nodiscard]] cudaError_t loss_rows(const LossRows& op, cudaStream_t stream);

// ---- Muon around its products (muon.cu)

struct Muon {
  float lr, momentum, weight_decay, grad_scale;
};

// m += (1 - momentum) * (g - m), x = g + momentum * (m - g), with g = grad_scale * grad; then rows
// of x to equal norms and x to a Frobenius norm of 1 / 1.01.
struct MuonPrepare {
  const Muon* values;
  const float* grad;
  int64_t rows, cols;
  float *m, *x;
};
size_t muon_prepare_workspace(int64_t rows);
[[nodiscard]] cudaError_t muon_prepare(const MuonPrepare& op, void* workspace, cudaStream_t stream);

// Norm snap, NorMuon's variance reduction (second: rows values if rows >= cols, else cols),
// cautious decay, update of p.
struct MuonFinish {
  const Muon* values;
  const float* x;
  float* second;
  float beta2;
  int64_t rows, cols;
  float* p;
};
size_t muon_finish_workspace(int64_t rows, int64_t cols);
[[nodiscard]] cudaError_t muon_finish(const MuonFinish& op, void* workspace, cudaStream_t stream);

}  // namespace heddle::kernels::cuda::ops
