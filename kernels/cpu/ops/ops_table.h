// fp32 kernels of a training step for one instruction set, as a table of function pointers. They
// know no threads: each works on a range of rows, elements or ids, and two ranges never write the
// same memory. Results do not depend on how ranges are cut: rows and ids anywhere, elements and
// columns at multiples of kCut.
//
// One source, table.cpp, is compiled once per instruction set; the caller picks a table that the
// processor can run (framework/device/cpu/cpu_isa.h). Equations: docs/architecture.md. Letters: N
// rows (tokens), C channels, H heads, K kv heads, D head_dim, V vocabulary. Matrices are row-major
// with `ld` elements from row to row, or dense where no ld is given.
#pragma once

#include <cstdint>

namespace heddle::kernels {

inline constexpr int64_t kCut = 64;          // elements: four vectors of the widest set
inline constexpr int64_t kSmearInputs = 24;  // channels that the smear gate reads
inline constexpr int64_t kGateInputs = 12;   // channels that a value-embedding gate reads

// u (N, C) = rms(table[tokens]), rstd (N).
struct EmbedNorm {
  const int32_t* tokens;
  const float* table;
  int64_t table_ld, channels;
  float eps;
  float *u, *rstd;
};

// dtable[ids[i]] += sum over its rows of rstd * (du - u * mean(du . u)); rows of id i are
// order[starts[i]] .. order[starts[i + 1] - 1].
struct EmbedNormGrad {
  const float *du, *u, *rstd;
  const int32_t *order, *ids, *starts;
  int64_t channels;
  float* dtable;
  int64_t dtable_ld;
};

// x_t = u_t + lambda * gate_t * u_{t-1}; row n is token n % seq_len. The row before the first of
// sequence b is row b of prev, or absent when prev is nullptr (gate 0).
struct Smear {
  const float *u, *w, *prev;
  float lambda;
  int64_t seq_len, channels;
  float *x, *gate;
};

// du is overwritten and must not overlap dx.
struct SmearGrad {
  const float *dx, *u, *gate, *w;
  float lambda;
  int64_t seq_len, channels;
  float* du;
};

// y = a * x + b * z (z nullptr: y = a * x), h = rms(y), rstd (N). y may be x. y nullptr: nothing is
// mixed, h = rms(x).
struct MixNorm {
  const float *x, *z;
  float a, b;
  int64_t channels;
  float eps;
  float *y, *h, *rstd;
};

// total = dy + rstd * (dh - h * mean(dh . h)), dy nullptr: none; dx = a * total (dx may be dy);
// dz += b * total when dz is given. x: wanted for the sum total . x; z: for total . z.
struct MixNormGrad {
  const float *dh, *h, *rstd, *dy, *x, *z;
  float a, b;
  int64_t channels;
  float *dx, *dz;
};

// x (N, heads * D), in place: rotated halves, then scale * rms(.) when norm, else scale * (.).
// Row n is at position pos0[n / seq_len] + n % seq_len (pos0 nullptr: zeros); cos, sin
// (positions, D / 2); rstd (N, heads).
struct Rope {
  const float *cos, *sin;
  int64_t seq_len;
  const int32_t* pos0;
  int64_t heads, head_dim;
  bool norm;
  float scale, eps;
  float* x;
  int64_t ld;
  float* rstd;
};

// dx in place; y is what the forward left.
struct RopeGrad {
  Rope op;  // x, ld: the gradient; rstd: as saved
  const float* y;
  int64_t y_ld;
};

// gate (N, K) = 3 * sigmoid(h[0:12] . wg[k]); v (N, K * D) += gate * table[token].
struct ValueEmbed {
  const float* h;
  int64_t channels;
  const float *wg, *table;
  int64_t table_ld;
  const int32_t* tokens;
  int64_t n_kv_head, head_dim;
  float* v;
  int64_t v_ld;
  float* gate;
};

// dh[:, 0:12] += ..., dtable[ids[i]] += gate * dv; rows of an id as in EmbedNormGrad.
struct ValueEmbedGrad {
  const float* dv;
  int64_t dv_ld;
  const float* h;
  int64_t channels;
  const float *wg, *table;
  int64_t table_ld;
  const int32_t *order, *ids, *starts;
  int64_t n_kv_head, head_dim;
  const float* gate;
  float *dh, *dtable;
  int64_t dtable_ld;
};

// Rows of raw logits z. Per row: loss = logsumexp(cap(z)) - cap(z)[target] in nats, 0 where target
// < 0; cap(z) = softcap * tanh(z / softcap), or z when softcap is 0. With gradient, z is replaced
// by d loss / d z. argmax may be nullptr; the lowest index wins a tie.
struct LossRows {
  float* z;
  int64_t ld, vocab;
  float softcap;
  const int32_t* targets;
  bool gradient;
  float* loss;
  int32_t* argmax;
};

// c (m, N) = alpha * a (m, k) times the transpose of b (N, k), + beta * c; with beta 0 what c held
// does not matter. For m up to 16 or so.
struct ThinProduct {
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc, m, k;
  float alpha, beta;
};

struct AdamW {
  float beta1, beta2, eps;
  float decay;           // 1 - lr * weight_decay
  float step_size;       // lr / (1 - beta1^n)
  float inv_sqrt_bias2;  // (1 - beta2^n)^-1/2
  float grad_scale;
};

// m += (1 - momentum) * (g - m), x = g + momentum * (m - g), with g = grad_scale * grad.
struct MuonMomentum {
  const float* grad;
  float grad_scale, momentum;
  int64_t cols;
  float *m, *x;
};

// u = x * factor; p -= lr * u + (u * p >= 0 ? lr * weight_decay * p : 0). Exactly one of
// row_factor (rows), col_factor (cols) is given.
struct MuonUpdate {
  const float *x, *row_factor, *col_factor;
  float lr, weight_decay;
  int64_t cols;
  float* p;
};

struct OpsTable {
  const char* isa;
  int lanes;

  // ---- ranges of elements
  void (*add)(float* dst, const float* src, int64_t n);
  double (*sum_squares)(const float* x, int64_t n);
  void (*relu2_forward)(float* x, int64_t n);
  void (*relu2_backward)(float* da, const float* a, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);
  void (*adamw)(const AdamW& op, const float* grad, float* p, float* m, float* v, int64_t n);

  // ---- rows [begin, end); sums are added to
  void (*embed_norm_forward)(const EmbedNorm& op, int64_t begin, int64_t end);
  void (*smear_forward)(const Smear& op, int64_t begin, int64_t end);
  // sums: dw (24), dlambda
  void (*smear_backward)(const SmearGrad& op, int64_t begin, int64_t end, double* sums);
  void (*mix_norm_forward)(const MixNorm& op, int64_t begin, int64_t end);
  // sums: total . x, total . z
  void (*mix_norm_backward)(const MixNormGrad& op, int64_t begin, int64_t end, double* sums);
  void (*rope_norm_forward)(const Rope& op, int64_t begin, int64_t end);
  void (*rope_norm_backward)(const RopeGrad& op, int64_t begin, int64_t end);
  void (*value_embed_forward)(const ValueEmbed& op, int64_t begin, int64_t end);
  void (*loss_rows)(const LossRows& op, int64_t begin, int64_t end);

  // ---- columns [begin, end) of c; a row's result does not depend on the other rows
  void (*thin_matmul)(const ThinProduct& op, int64_t begin, int64_t end);

  // ---- ids [begin, end) of a token index
  void (*embed_norm_backward)(const EmbedNormGrad& op, int64_t begin, int64_t end);
  // sums: dwg (K, 12)
  void (*value_embed_backward)(const ValueEmbedGrad& op, int64_t begin, int64_t end, double* sums);

  // ---- Muon; squares (rows or cols) are overwritten in the range
  void (*muon_momentum)(const MuonMomentum& op, int64_t begin, int64_t end, double* row_squares);
  void (*scale_rows)(float* x, int64_t cols, const float* factor, int64_t begin, int64_t end);
  void (*row_squares)(const float* x, int64_t cols, int64_t begin, int64_t end, double* squares);
  // columns [begin, end) of all rows
  void (*col_squares)(const float* x, int64_t rows, int64_t cols, int64_t begin, int64_t end,
                      double* squares);
  void (*muon_update)(const MuonUpdate& op, int64_t begin, int64_t end);

  // ---- vector functions that the kernels above are made of; y may be x.
  // Relative errors: exp 1e-7 on [-87, 88], tanh and sigmoid 2e-7.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*sigmoid)(const float* x, float* y, int64_t n);

  // Runs `iterations` * kFmaChains * lanes independent multiply-adds; the value means nothing.
  float (*fma_burst)(int64_t iterations);
};

inline constexpr int kFmaChains = 12;

const OpsTable& ops_table_baseline();  // x86-64-v2
const OpsTable& ops_table_avx2();      // AVX2, FMA
const OpsTable& ops_table_avx512();    // AVX-512 F, BW, VL, DQ

}  // namespace heddle::kernels
