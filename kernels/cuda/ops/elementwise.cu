#include <cuda_bf16.h>

#include "kernels/cuda/hardware/element.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/ops/parts.cuh"

namespace heddle::kernels::cuda::ops {
namespace {

constexpr unsigned kElementThreads = 256;

template <class F>
__global__ void __launch_bounds__(kElementThreads) each_element(F f, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kElementThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x; i < n;
       i += stride) {
    f(i);
  }
}
template <class F>
cudaError_t enqueue(const F& f, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return launch(each_element<F>, blocks_for(n, kElementThreads), kElementThreads, 0, stream, f, n);
}

// f(row, column): a block takes a row.
template <class F>
__global__ void __launch_bounds__(kElementThreads) each_place(F f, int64_t rows, int64_t cols) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    for (int64_t c = threadIdx.x; c < cols; c += kElementThreads) f(r, c);
  }
}
template <class F>
cudaError_t enqueue_places(const F& f, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  return launch(each_place<F>, blocks_for(rows, 1), kElementThreads, 0, stream, f, rows, cols);
}

struct Add {
  float* dst;
  const float* src;
  __device__ void operator()(int64_t i) const { dst[i] += src[i]; }
};

struct Relu2 {
  float* x;
  __device__ void operator()(int64_t i) const {
    const float v = x[i];
    // NaN stays NaN.
    x[i] = v < 0.0f ? 0.0f : v * v;
  }
};

struct Relu2Grad {
  float* da;
  const float* a;
  __device__ void operator()(int64_t i) const { da[i] *= 2.0f * sqrtf(a[i]); }
};

struct Softcap {
  float* z;
  int64_t ld;
  float cap;
  __device__ void operator()(int64_t r, int64_t c) const {
    z[r * ld + c] = cap * tanhf(z[r * ld + c] / cap);
  }
};

struct ToBf16 {
  const float* from;
  int64_t from_ld;
  __nv_bfloat16* to;
  int64_t to_ld;
  __device__ void operator()(int64_t r, int64_t c) const {
    to[r * to_ld + c] = __float2bfloat16_rn(from[r * from_ld + c]);
  }
  __device__ void operator()(int64_t i) const { (*this)(0, i); }
};

// Four neighbours at a time.
struct FourToBf16 {
  const float* from;
  __nv_bfloat16* to;
  __device__ void operator()(int64_t i) const {
    const float4 x = *reinterpret_cast<const float4*>(from + 4 * i);
    *reinterpret_cast<uint2*>(to + 4 * i) = {pack<__nv_bfloat16>(x.x, x.y),
                                             pack<__nv_bfloat16>(x.z, x.w)};
  }
  __device__ void operator()(int64_t r, int64_t c) const {
    FourToBf16{from + r * from_ld, to + r * to_ld}(c);
  }
  int64_t from_ld = 0, to_ld = 0;
};

struct FromBf16 {
  const __nv_bfloat16* from;
  int64_t from_ld;
  float* to;
  int64_t to_ld;
  __device__ void operator()(int64_t r, int64_t c) const {
    to[r * to_ld + c] = __bfloat162float(from[r * from_ld + c]);
  }
};

// Adding and subtracting 1.5 * 2^(52 + e) rounds to a multiple of 2^e.
struct AddExact {
  float* x;
  double *high, *low;
  __device__ void operator()(int64_t i) const {
    constexpr double kHigh = 1.5 * (1 << 28), kLow = 1.5 / (1 << 12), kLimit = 32768.0;
    const double value = x[i];
    const double top = (value + kHigh) - kHigh;
    const double rest = value - top;
    high[i] += value > -kLimit && value < kLimit ? top : static_cast<double>(NAN);
    low[i] += (rest + kLow) - kLow;
    x[i] = 0.0f;
  }
};

struct RoundExact {
  const double *high, *low;
  float* x;
  __device__ void operator()(int64_t i) const { x[i] = static_cast<float>(high[i] + low[i]); }
};

template <class T>
struct RankOrderSum {
  T* own;
  const T* others;
  int64_t stride;
  int rank, ranks;
  __device__ void operator()(int64_t i) const {
    T sum = rank == 0 ? own[i] : others[i];
    for (int r = 1; r < ranks; ++r) {
      sum += r == rank ? own[i] : others[(r < rank ? r : r - 1) * stride + i];
    }
    own[i] = sum;
  }
};

struct AdamWUpdate {
  const AdamW* values;
  const float* grad;
  float *p, *m, *v;
  __device__ void operator()(int64_t i) const {
    const AdamW op = *values;
    const float g = grad[i] * op.grad_scale;
    const float old_m = m[i], old_v = v[i];
    const float new_m = old_m + (1.0f - op.beta1) * (g - old_m);
    const float new_v = old_v + (1.0f - op.beta2) * (g * g - old_v);
    m[i] = new_m;
    v[i] = new_v;
    p[i] = p[i] * op.decay - op.step_size * (new_m / (sqrtf(new_v) * op.inv_sqrt_bias2 + op.eps));
  }
};

constexpr int64_t kLeastElements = 4096;  // of a piece

// Blocks first[i] .. first[i + 1] - 1 take a piece each of tensor i.
struct SquarePieces {
  Squares tensors;
  unsigned first[kSquareTensors + 1];

  explicit SquarePieces(const Squares& op) : tensors(op) {
    first[0] = 0;
    for (int i = 0; i < op.count; ++i) {
      first[i + 1] = first[i] + static_cast<unsigned>(pieces_of(op.n[i], kLeastElements));
    }
  }
  unsigned count() const { return first[tensors.count]; }
};
static_assert(sizeof(SquarePieces) + 2 * sizeof(void*) <= 4096);  // what a launch takes

// Squares in fp32, sums in fp64.
__global__ void __launch_bounds__(kElementThreads)
    square_pieces(SquarePieces op, double* partial) {
  int i = 0;
  while (blockIdx.x >= op.first[i + 1]) ++i;
  const float* x = op.tensors.x[i];
  const int64_t n = op.tensors.n[i];
  const int64_t pieces = op.first[i + 1] - op.first[i];
  const int64_t length = (n + pieces - 1) / pieces;
  const int64_t begin = length * (blockIdx.x - op.first[i]);
  const int64_t end = begin + length < n ? begin + length : n;
  double sum = 0;
  for (int64_t k = begin + threadIdx.x; k < end; k += kElementThreads) {
    sum += static_cast<double>(x[k] * x[k]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Block i: the pieces of tensor i.
__global__ void __launch_bounds__(kElementThreads)
    sum_pieces(SquarePieces op, const double* partial, double* sums) {
  double sum = 0;
  for (unsigned p = op.first[blockIdx.x] + threadIdx.x; p < op.first[blockIdx.x + 1];
       p += kElementThreads) {
    sum += partial[p];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

cudaError_t add(float* dst, const float* src, int64_t n, cudaStream_t stream) {
  return enqueue(Add{dst, src}, n, stream);
}
cudaError_t relu2_forward(float* x, int64_t n, cudaStream_t stream) {
  return enqueue(Relu2{x}, n, stream);
}
cudaError_t relu2_backward(float* da, const float* a, int64_t n, cudaStream_t stream) {
  return enqueue(Relu2Grad{da, a}, n, stream);
}
cudaError_t softcap(float* z, int64_t ld, int64_t rows, int64_t cols, float cap,
                    cudaStream_t stream) {
  return enqueue_places(Softcap{z, ld, cap}, rows, cols, stream);
}

cudaError_t to_bf16(const float* from, int64_t from_ld, void* to, int64_t to_ld, int64_t rows,
                    int64_t cols, cudaStream_t stream) {
  auto* out = static_cast<__nv_bfloat16*>(to);
  if (rows == 1 || (from_ld == cols && to_ld == cols)) {  // no gaps: one row
    cols *= rows;
    rows = 1;
    from_ld = to_ld = cols;
  }
  const bool fours = reinterpret_cast<uintptr_t>(from) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(to) % 8 == 0 && cols % 4 == 0 &&
                     from_ld % 4 == 0 && to_ld % 4 == 0;
  if (fours && rows == 1) return enqueue(FourToBf16{from, out}, cols / 4, stream);
  if (fours) return enqueue_places(FourToBf16{from, out, from_ld, to_ld}, rows, cols / 4, stream);
  const ToBf16 one{from, from_ld, out, to_ld};
  return rows == 1 ? enqueue(one, cols, stream) : enqueue_places(one, rows, cols, stream);
}
cudaError_t from_bf16(const void* from, int64_t from_ld, float* to, int64_t to_ld, int64_t rows,
                      int64_t cols, cudaStream_t stream) {
  return enqueue_places(
      FromBf16{static_cast<const __nv_bfloat16*>(from), from_ld, to, to_ld}, rows, cols, stream);
}

size_t sums_of_squares_workspace(const Squares& op) {
  Pieces pieces(nullptr);
  pieces.take<double>(SquarePieces(op).count());
  return pieces.used();
}
cudaError_t sums_of_squares(const Squares& op, double* sums, void* workspace, cudaStream_t stream) {
  if (op.count == 0) return cudaSuccess;
  const SquarePieces pieces(op);
  auto* partial = Pieces(workspace).take<double>(pieces.count());
  const cudaError_t error = launch(square_pieces, pieces.count(), kElementThreads, kBlockSumBytes,
                                   stream, pieces, partial);
  if (error != cudaSuccess) return error;
  return launch(sum_pieces, static_cast<unsigned>(op.count), kElementThreads, kBlockSumBytes,
                stream, pieces, partial, sums);
}

cudaError_t add_exact(float* x, double* high, double* low, int64_t n, cudaStream_t stream) {
  return enqueue(AddExact{x, high, low}, n, stream);
}
cudaError_t round_exact(const double* high, const double* low, float* x, int64_t n,
                        cudaStream_t stream) {
  return enqueue(RoundExact{high, low, x}, n, stream);
}

cudaError_t sum_in_rank_order(float* own, const float* others, int64_t stride, int64_t n, int rank,
                              int ranks, cudaStream_t stream) {
  return enqueue(RankOrderSum<float>{own, others, stride, rank, ranks}, n, stream);
}
cudaError_t sum_in_rank_order(double* own, const double* others, int64_t stride, int64_t n,
                              int rank, int ranks, cudaStream_t stream) {
  return enqueue(RankOrderSum<double>{own, others, stride, rank, ranks}, n, stream);
}

cudaError_t adamw(const AdamW* op, const float* grad, float* p, float* m, float* v, int64_t n,
                  cudaStream_t stream) {
  return enqueue(AdamWUpdate{op, grad, p, m, v}, n, stream);
}

}  // namespace heddle::kernels::cuda::ops
