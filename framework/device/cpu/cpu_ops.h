// Ops on the host's processors, fp32. See cpu_matmul.cpp for products, cpu_head.cpp for the loss,
// cpu_optimizer.cpp for AdamW and Muon.
//
// Work is cut by parallel_for; sums over rows by a number of pieces that depends on the shape only
// and are added in order, so results do not depend on the number of threads. Scratch grows at the
// first use of a shape; after that no call allocates.
#pragma once

#include "framework/device/ops.h"
#include "kernels/cpu/ops/ops_table.h"

namespace heddle {

class CpuOps : public Ops {
 public:
  explicit CpuOps(const kernels::OpsTable& table) : table_(table) {}

  void zero(void* data, size_t bytes) override;
  void copy(float* dst, const float* src, int64_t n) override;
  void add(float* dst, const float* src, int64_t n) override;
  void sums_of_squares(std::span<const std::span<const float>> tensors, double* sums) override;
  void convert(const Matrix& from, const Matrix& to) override;

  void matmul(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c,
              float alpha, float beta) override;
  void announce_weights(const float*, int64_t) override {}  // products read fp32
  void run_independent(int64_t n, const std::function<void(int64_t, int)>& body) override;
  int workers() const override;

  void index_tokens(const int32_t* tokens, int64_t n, int64_t vocab, TokenIndex* index) override;
  void embed_norm_forward(const int32_t* tokens, int64_t n, const Matrix& wte, float* u,
                          float* rstd) override;
  void embed_norm_backward(const float* du, const float* u, const float* rstd,
                           const TokenIndex& index, const Matrix& dwte) override;
  void smear_forward(const float* u, int64_t batch, int64_t seq_len, int64_t channels,
                     const float* w, const float* lambda, const float* prev, float* x,
                     float* gate) override;
  void smear_backward(const float* dx, const float* u, const float* gate, int64_t batch,
                      int64_t seq_len, int64_t channels, const float* w, const float* lambda,
                      float* du, float* dw, float* dlambda) override;

  void mix_norm_forward(const Mix& mix, const float* x, const float* z, int64_t n, int64_t channels,
                        float* y, float* h, float* rstd) override;
  void mix_norm_backward(const Mix& mix, const float* dh, const float* h, const float* rstd,
                         const float* dy, const float* x, const float* z, int64_t n,
                         int64_t channels, float* dx, float* dz, float* da, float* db) override;

  void rope_norm_forward(const RopeNorm& op, const Matrix& x, float* rstd) override;
  void rope_norm_backward(const RopeNorm& op, const Matrix& y, const float* rstd,
                          const Matrix& dx) override;
  void value_embed_forward(const float* h, int64_t channels, const float* wg, const Matrix& ve,
                           const int32_t* tokens, int64_t n_kv_head, const Matrix& v,
                           float* gate) override;
  void value_embed_backward(const Matrix& dv, const float* h, int64_t channels, const float* wg,
                            const Matrix& ve, const int32_t* tokens, const TokenIndex& index,
                            int64_t n_kv_head, const float* gate, float* dwg, float* dh,
                            const Matrix& dve) override;

  void relu2_forward(float* x, int64_t n) override;
  void relu2_backward(float* da, const float* a, int64_t n) override;

  void head_logits(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                   const Matrix& logits) override;
  void head_loss(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                 const int32_t* targets, const Matrix& scratch, float* loss, int32_t* argmax,
                 const Matrix* dh, const Matrix* dw) override;

  void add_exact(float* x, double* high, double* low, int64_t n) override;
  void round_exact(const double* high, const double* low, float* x, int64_t n) override;

  void adamw(const AdamWValues* values, const float* grad, float* p, float* m, float* v,
             int64_t n) override;
  void muon_prepare(const MuonValues* values, const float* grad, float* momentum, int64_t rows,
                    int64_t cols, float* x) override;
  void muon_finish(const MuonValues* values, float* x, float* second, float beta2, int64_t rows,
                   int64_t cols, float* p) override;

 private:
  const kernels::OpsTable& table_;
};

// At least `bytes` bytes that belong to the calling thread: the scratch of one operation, valid
// until the thread's next call.
void* thread_scratch(size_t bytes);

// Rows (or columns, ids) that one worker should have at least when each costs `width` elements.
int64_t row_grain(int64_t width);

// Throws heddle::Error (config) when an id is not in [lowest, limit).
void check_ids(const char* what, const int32_t* ids, int64_t n, int64_t lowest, int64_t limit);

}  // namespace heddle
