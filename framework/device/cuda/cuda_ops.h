// Ops on a CUDA stream: kernels/cuda/ops and cuBLASLt. Calls enqueue and return; sums_of_squares()
// alone waits. See docs/architecture.md for the two precisions.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>

#include "framework/device/cuda/cuda_blas.h"
#include "framework/device/ops.h"

namespace heddle {

// Device memory that grows and never shrinks: its contents last for one operation. `growths` counts
// how often a recorded address became stale.
class CudaScratch {
 public:
  explicit CudaScratch(int64_t& growths) : growths_(growths) {}
  ~CudaScratch();
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;
  void* get(size_t bytes);

 private:
  int64_t& growths_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class CudaOps : public Ops {
 public:
  // bf16: products read their operands rounded to bf16. blas_workspace: bytes for cuBLASLt.
  CudaOps(cudaStream_t stream, bool bf16, size_t blas_workspace);
  ~CudaOps() override;

  // Products round again what was announced as weights.
  void forget_weights();

  // Changes when memory that a recorded graph may use has moved.
  int64_t growths() const { return growths_; }

  // `callback` runs whenever the host is about to wait for the stream; see Device.
  void before_wait(std::function<void()> callback) { before_wait_ = std::move(callback); }
  void about_to_wait() const {
    if (before_wait_) before_wait_();
  }

  // Waits for the stream. Throws heddle::Error (config) when an id outside of the vocabulary came
  // in since the last call.
  void settle();

  void zero(void* data, size_t bytes) override;
  void copy(float* dst, const float* src, int64_t n) override;
  void add(float* dst, const float* src, int64_t n) override;
  void sums_of_squares(std::span<const std::span<const float>> tensors, double* sums) override;
  void convert(const Matrix& from, const Matrix& to) override;

  void matmul(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c,
              float alpha, float beta) override;
  void announce_weights(const float* weights, int64_t n) override;
  void run_independent(int64_t n, const std::function<void(int64_t, int)>& body) override;
  int workers() const override { return 1; }

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
  // An operand as products read it; `room` takes it when it has to be rounded.
  Matrix operand(const Matrix& m, CudaScratch& room);

  cudaStream_t stream_;
  bool bf16_;
  std::function<void()> before_wait_;
  int64_t growths_ = 0;
  CudaScratch workspace_{growths_};  // of kernels
  // bf16 operands, and the gradient of logits
  CudaScratch first_{growths_}, second_{growths_}, third_{growths_};
  // Announced weights, by address: their values in bf16, unless that is over.
  struct Announced {
    explicit Announced(int64_t& growths) : rounded(growths) {}
    int64_t count = 0;
    CudaScratch rounded;
    bool holds = false;
  };
  std::map<const float*, Announced> weights_;
  CudaScratch blas_memory_{growths_};
  std::unique_ptr<CudaBlas> blas_;
  CudaScratch sums_{growths_};  // of squares
  // The status of ids: on the device, and where the host reads it.
  int* status_ = nullptr;
  int* host_status_ = nullptr;
};

}  // namespace heddle
