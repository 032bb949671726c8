#include "framework/device/cuda/cuda_ops.h"

#include <algorithm>

#include "framework/core/error.h"
#include "framework/device/cuda/cuda_error.h"
#include "kernels/cuda/ops/ops.h"

namespace heddle {

namespace k = kernels::cuda::ops;

static_assert(kSmearChannels == k::kSmearInputs);
static_assert(kValueGateChannels == k::kGateInputs);

namespace {

k::TokenRows token_rows(const TokenIndex& index) {
  return {index.order, index.ids, index.starts, index.unique};
}

// The kernels' names for values that lie on the device.
template <class To, class From>
const To* on_device(const From* values) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To*>(values);
}

int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// (rows, cols) in bf16 with rows of whole 16 bytes, as tensor cores want them.
Matrix bf16_in(CudaScratch& room, int64_t rows, int64_t cols) {
  const int64_t ld = round_up(cols, 8);
  return {room.get(static_cast<size_t>(rows * ld) * dtype_size(DType::kBF16)), rows, cols, ld,
          DType::kBF16};
}

}  // namespace

CudaScratch::~CudaScratch() {
  (void)cudaFree(data_);
}

// cudaFree waits for kernels that still use the old memory.
void* CudaScratch::get(size_t bytes) {
  if (bytes <= bytes_) return data_;
  ++growths_;
  check_cuda(cudaFree(data_), "freeing scratch");
  data_ = nullptr;
  bytes_ = 0;
  check_cuda(cudaMalloc(&data_, bytes), "allocating scratch");
  bytes_ = bytes;
  return data_;
}

CudaOps::CudaOps(cudaStream_t stream, bool bf16, size_t blas_workspace)
    : stream_(stream), bf16_(bf16) {
  blas_ = std::make_unique<CudaBlas>(stream, blas_memory_.get(blas_workspace), blas_workspace);
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, sizeof(int)), "allocating a status");
  status_ = static_cast<int*>(memory);
  check_cuda(cudaMallocHost(&memory, sizeof(int)), "allocating pinned memory");
  host_status_ = static_cast<int*>(memory);
  check_cuda(cudaMemsetAsync(status_, 0, sizeof(int), stream_), "clearing a status");
}

CudaOps::~CudaOps() {
  (void)cudaFree(status_);
  (void)cudaFreeHost(host_status_);
}

void CudaOps::settle() {
  about_to_wait();
  check_cuda(cudaMemcpyAsync(host_status_, status_, sizeof(int), cudaMemcpyDeviceToHost, stream_),
             "reading a status");
  check_cuda(cudaStreamSynchronize(stream_), "waiting for the device");
  if (*host_status_ == 0) return;
  check_cuda(cudaMemsetAsync(status_, 0, sizeof(int), stream_), "clearing a status");
  throw config_error("a token or target outside of the vocabulary reached the device",
                     "check that model.vocab_size fits the tokenizer and the data");
}

void CudaOps::zero(void* data, size_t bytes) {
  check_cuda(cudaMemsetAsync(data, 0, bytes, stream_), "zero");
}
void CudaOps::copy(float* dst, const float* src, int64_t n) {
  check_cuda(cudaMemcpyAsync(dst, src, static_cast<size_t>(n) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream_),
             "copy");
}
void CudaOps::add(float* dst, const float* src, int64_t n) {
  check_cuda(k::add(dst, src, n, stream_), "add");
}
void CudaOps::sums_of_squares(std::span<const std::span<const float>> tensors, double* sums) {
  const size_t bytes = tensors.size() * sizeof(double);
  auto* found = static_cast<double*>(sums_.get(bytes));
  for (size_t at = 0; at < tensors.size(); at += k::kSquareTensors) {
    k::Squares op;
    for (const std::span<const float> x :
         tensors.subspan(at).first(std::min<size_t>(tensors.size() - at, k::kSquareTensors))) {
      op.x[op.count] = x.data();
      op.n[op.count++] = static_cast<int64_t>(x.size());
    }
    void* room = workspace_.get(k::sums_of_squares_workspace(op));
    check_cuda(k::sums_of_squares(op, found + at, room, stream_), "sums_of_squares");
  }
  settle();
  // Into pageable memory: returns when it is done.
  check_cuda(cudaMemcpyAsync(sums, found, bytes, cudaMemcpyDeviceToHost, stream_), "reading sums");
}

void CudaOps::convert(const Matrix& from, const Matrix& to) {
  HEDDLE_CHECK(from.rows == to.rows && from.cols == to.cols && from.dtype != to.dtype,
               "convert: shapes or types do not fit");
  if (to.dtype == DType::kBF16) {
    check_cuda(k::to_bf16(from.f32(), from.ld, to.data, to.ld, from.rows, from.cols, stream_),
               "rounding to bf16");
  } else {
    check_cuda(k::from_bf16(from.data, from.ld, to.f32(), to.ld, from.rows, from.cols, stream_),
               "widening bf16");
  }
}

Matrix CudaOps::operand(const Matrix& m, CudaScratch& room) {
  if (!bf16_ || m.dtype == DType::kBF16) return m;
  auto it = weights_.upper_bound(m.f32());
  if (it != weights_.begin()) {
    const auto& [begin, announced] = *--it;
    if (announced.holds && m.f32() < begin + announced.count) {
      auto* rounded = static_cast<uint16_t*>(it->second.rounded.get(0));
      return {rounded + (m.f32() - begin), m.rows, m.cols, m.ld, DType::kBF16};
    }
  }
  const Matrix rounded = bf16_in(room, m.rows, m.cols);
  convert(m, rounded);
  return rounded;
}

void CudaOps::matmul(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c,
                     float alpha, float beta) {
  blas_->product(operand(a, first_), trans_a, operand(b, second_), trans_b, c, alpha, beta);
}

void CudaOps::announce_weights(const float* weights, int64_t n) {
  if (!bf16_) return;
  Announced& a = weights_.try_emplace(weights, growths_).first->second;
  a.count = n;
  a.holds = true;
  void* to = a.rounded.get(static_cast<size_t>(n) * dtype_size(DType::kBF16));
  check_cuda(k::to_bf16(weights, n, to, n, 1, n, stream_), "rounding weights to bf16");
}

void CudaOps::forget_weights() {
  for (auto& [begin, announced] : weights_) announced.holds = false;
}

void CudaOps::run_independent(int64_t n, const std::function<void(int64_t, int)>& body) {
  forget_weights();  // bodies may change what was announced
  for (int64_t i = 0; i < n; ++i) body(i, 0);
}

void CudaOps::index_tokens(const int32_t* tokens, int64_t n, int64_t vocab, TokenIndex* index) {
  index->unique = std::min(n, vocab);  // a bound: the number itself stays on the device
  index->rows = n;
  void* room = workspace_.get(k::index_tokens_workspace(n));
  check_cuda(
      k::index_tokens(tokens, n, vocab, token_rows(*index), index->scratch, status_, room, stream_),
      "index_tokens");
}

void CudaOps::embed_norm_forward(const int32_t* tokens, int64_t n, const Matrix& wte, float* u,
                                 float* rstd) {
  check_cuda(
      k::embed_norm_forward(
          {tokens, wte.f32(), wte.ld, wte.rows, n, wte.cols, kRmsEps, u, rstd, status_}, stream_),
      "embed_norm_forward");
}

void CudaOps::embed_norm_backward(const float* du, const float* u, const float* rstd,
                                  const TokenIndex& index, const Matrix& dwte) {
  void* room = workspace_.get(k::embed_norm_backward_workspace(index.rows));
  check_cuda(k::embed_norm_backward({du, u, rstd, token_rows(index), index.rows, dwte.cols,
                                     dwte.f32(), dwte.ld},
                                    room, stream_),
             "embed_norm_backward");
}

void CudaOps::smear_forward(const float* u, int64_t batch, int64_t seq_len, int64_t channels,
                            const float* w, const float* lambda, const float* prev, float* x,
                            float* gate) {
  check_cuda(k::smear_forward({u, w, lambda, prev, batch * seq_len, seq_len, channels, x, gate},
                              stream_),
             "smear_forward");
}

void CudaOps::smear_backward(const float* dx, const float* u, const float* gate, int64_t batch,
                             int64_t seq_len, int64_t channels, const float* w,
                             const float* lambda, float* du, float* dw, float* dlambda) {
  const int64_t n = batch * seq_len;
  void* room = workspace_.get(k::smear_backward_workspace(n));
  check_cuda(k::smear_backward({dx, u, gate, w, lambda, n, seq_len, channels, du, dw, dlambda},
                               room, stream_),
             "smear_backward");
}

void CudaOps::mix_norm_forward(const Mix& mix, const float* x, const float* z, int64_t n,
                               int64_t channels, float* y, float* h, float* rstd) {
  const bool changes = mix.a != nullptr || mix.b != nullptr || y != x;
  check_cuda(k::mix_norm_forward({x, mix.b == nullptr ? nullptr : z, mix.a, mix.b, mix.sign, n,
                                  channels, kRmsEps, changes ? y : nullptr, h, rstd},
                                 stream_),
             "mix_norm_forward");
}

void CudaOps::mix_norm_backward(const Mix& mix, const float* dh, const float* h, const float* rstd,
                                const float* dy, const float* x, const float* z, int64_t n,
                                int64_t channels, float* dx, float* dz, float* da, float* db) {
  void* room = workspace_.get(k::mix_norm_backward_workspace(n));
  check_cuda(k::mix_norm_backward({dh, h, rstd, dy, x, z, mix.a, mix.b, mix.sign, n, channels, dx,
                                   dz, da, db},
                                  room, stream_),
             "mix_norm_backward");
}

namespace {

k::Rope rope(const RopeNorm& op, const Matrix& x, const float* rstd) {
  HEDDLE_CHECK(x.cols == op.heads * op.head_dim && op.head_dim % 2 == 0,
               "rope_norm: columns are not heads * head_dim");
  return {op.cos,  op.sin,   op.seq_len, op.pos0, x.rows, op.heads, op.head_dim,
          op.norm, op.scale, kRmsEps,    x.f32(), x.ld,   const_cast<float*>(rstd)};
}

}  // namespace

void CudaOps::rope_norm_forward(const RopeNorm& op, const Matrix& x, float* rstd) {
  check_cuda(k::rope_norm_forward(rope(op, x, rstd), stream_), "rope_norm_forward");
}
void CudaOps::rope_norm_backward(const RopeNorm& op, const Matrix& y, const float* rstd,
                                 const Matrix& dx) {
  check_cuda(k::rope_norm_backward(rope(op, dx, rstd), y.f32(), y.ld, stream_),
             "rope_norm_backward");
}

void CudaOps::value_embed_forward(const float* h, int64_t channels, const float* wg,
                                  const Matrix& ve, const int32_t* tokens, int64_t n_kv_head,
                                  const Matrix& v, float* gate) {
  check_cuda(k::value_embed_forward({h, channels, wg, ve.f32(), ve.ld, ve.rows, tokens, v.rows,
                                     n_kv_head, v.cols / n_kv_head, v.f32(), v.ld, gate, status_},
                                    stream_),
             "value_embed_forward");
}

void CudaOps::value_embed_backward(const Matrix& dv, const float* h, int64_t channels,
                                   const float* wg, const Matrix& ve, const int32_t* tokens,
                                   const TokenIndex& index, int64_t n_kv_head, const float* gate,
                                   float* dwg, float* dh, const Matrix& dve) {
  void* room = workspace_.get(k::value_embed_backward_workspace(dv.rows, n_kv_head));
  check_cuda(k::value_embed_backward({dv.f32(), dv.ld, h, channels, wg, ve.f32(), ve.ld, ve.rows,
                                      tokens, token_rows(index), dv.rows, n_kv_head,
                                      dv.cols / n_kv_head, gate, dwg, dh, dve.f32(), dve.ld},
                                     room, stream_),
             "value_embed_backward");
}

void CudaOps::relu2_forward(float* x, int64_t n) {
  check_cuda(k::relu2_forward(x, n, stream_), "relu2_forward");
}
void CudaOps::relu2_backward(float* da, const float* a, int64_t n) {
  check_cuda(k::relu2_backward(da, a, n, stream_), "relu2_backward");
}

void CudaOps::head_logits(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                          const Matrix& logits) {
  const Matrix z{logits.data, h.rows, vocab, logits.ld, logits.dtype};
  matmul(h, false, w.row_range(0, vocab), true, z, 1.0f, 0.0f);
  if (softcap == 0) return;
  check_cuda(k::softcap(z.f32(), z.ld, z.rows, vocab, softcap, stream_), "softcap");
}

// In bf16 the gradient of the logits is written rounded, as both products read it.
void CudaOps::head_loss(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                        const int32_t* targets, const Matrix& scratch, float* loss,
                        int32_t* argmax, const Matrix* dh, const Matrix* dw) {
  HEDDLE_CHECK(scratch.rows > 0 && scratch.ld >= vocab && w.rows >= vocab,
               "head_loss: the scratch has no room for a row of logits");
  const Matrix weights = w.row_range(0, vocab);
  const int64_t chunks = (h.rows + scratch.rows - 1) / scratch.rows;
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t first = h.rows * c / chunks, count = h.rows * (c + 1) / chunks - first;
    const Matrix rows = operand(h.row_range(first, count), first_);
    const Matrix z{scratch.data, count, vocab, scratch.ld, DType::kF32};
    matmul(rows, false, weights, true, z, 1.0f, 0.0f);
    const Matrix dz = bf16_ && dh != nullptr ? bf16_in(third_, count, vocab) : z;
    const k::Gradient kind = dh == nullptr ? k::Gradient::kNone
                             : bf16_       ? k::Gradient::kBf16
                                           : k::Gradient::kF32;
    check_cuda(
        k::loss_rows({z.f32(), z.ld, count, vocab, softcap, targets + first, loss + first,
                      argmax == nullptr ? nullptr : argmax + first, kind, dz.data, dz.ld, status_},
                     stream_),
        "head_loss");
    if (dh == nullptr) continue;
    matmul(dz, false, weights, false, dh->row_range(first, count), 1.0f, 0.0f);
    matmul(dz, true, rows, false, dw->row_range(0, vocab), 1.0f, 1.0f);
  }
}

void CudaOps::add_exact(float* x, double* high, double* low, int64_t n) {
  check_cuda(k::add_exact(x, high, low, n, stream_), "add_exact");
}
void CudaOps::round_exact(const double* high, const double* low, float* x, int64_t n) {
  check_cuda(k::round_exact(high, low, x, n, stream_), "round_exact");
}

void CudaOps::adamw(const AdamWValues* values, const float* grad, float* p, float* m, float* v,
                    int64_t n) {
  forget_weights();
  check_cuda(k::adamw(on_device<k::AdamW>(values), grad, p, m, v, n, stream_), "adamw");
}

void CudaOps::muon_prepare(const MuonValues* values, const float* grad, float* momentum,
                           int64_t rows, int64_t cols, float* x) {
  void* room = workspace_.get(k::muon_prepare_workspace(rows));
  check_cuda(
      k::muon_prepare({on_device<k::Muon>(values), grad, rows, cols, momentum, x}, room, stream_),
      "muon_prepare");
}

void CudaOps::muon_finish(const MuonValues* values, float* x, float* second, float beta2,
                          int64_t rows, int64_t cols, float* p) {
  void* room = workspace_.get(k::muon_finish_workspace(rows, cols));
  check_cuda(
      k::muon_finish({on_device<k::Muon>(values), x, second, beta2, rows, cols, p}, room, stream_),
      "muon_finish");
}

}  // namespace heddle
