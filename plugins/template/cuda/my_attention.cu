// my_attention: a Heddle attention backend in CUDA on heddle_attention.hpp. Slow and right;
// README.md walks to a fast one.
//
// One warp computes one row by its definition, with sums in fp32 registers: no tile, no shared
// memory, no workspace. What the numbers mean is at the top of heddle_attention.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <heddle/heddle_attention.hpp>

namespace {

using heddle::attention::Answer;
using heddle::attention::Call;
using heddle::attention::Failure;
using heddle::attention::Host;
using heddle::attention::Problem;

constexpr int kWarp = 32;
constexpr int kMaxHeadDim = 256;
constexpr int kPerLane = kMaxHeadDim / kWarp;  // lane l holds the elements l, l + 32, l + 64, ...
constexpr int kWarpsPerBlock = 4;
constexpr int64_t kMaxBlocks = 1 << 20;  // rows beyond are reached by striding

__device__ float to_float(float x) {
  return x;
}
__device__ float to_float(__half x) {
  return __half2float(x);
}
__device__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ void store(float* to, float x) {
  *to = x;
}
__device__ void store(__half* to, float x) {
  *to = __float2half_rn(x);
}
__device__ void store(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

// ---- what a query may see ----

struct Range {
  int64_t begin, end;
};

__device__ int64_t clamp(int64_t x, int64_t most) {
  return x < 0 ? 0 : x < most ? x : most;
}
__device__ bool windowed(const heddle_attention_problem& p) {
  return p.window_left >= 0 && p.window_left < (int64_t{1} << 61);  // wider than any position
}
// Keys among n that the query sees whose own position is that of key `self`.
__device__ Range keys_seen(const heddle_attention_problem& p, int64_t self, int64_t n) {
  return {windowed(p) ? clamp(self - p.window_left, n) : 0,
          p.mask == HEDDLE_MASK_CAUSAL ? clamp(self + 1, n) : n};
}
// Queries that see the key whose own position is that of query `self`.
__device__ Range seen_by(const heddle_attention_problem& p, int64_t self) {
  return {p.mask == HEDDLE_MASK_CAUSAL ? clamp(self, p.q_len) : 0,
          windowed(p) ? clamp(self + p.window_left + 1, p.q_len) : p.q_len};
}

// ---- rows in the registers of a warp ----

struct Row {
  float x[kPerLane];
};

template <class T>
__device__ T* address(const void* data, const heddle_strides& s, int64_t b, int64_t t, int64_t h) {
  return static_cast<T*>(const_cast<void*>(data)) + b * s.batch + t * s.token + h * s.head;
}
template <class T>
__device__ Row load(const void* data, const heddle_strides& s, int64_t b, int64_t t, int64_t h,
                    int dim) {
  const T* from = address<T>(data, s, b, t, h);
  Row row;
  for (int n = 0; n < kPerLane; ++n) {
    const int d = n * kWarp + static_cast<int>(threadIdx.x);
    row.x[n] = d < dim ? to_float(from[d]) : 0.0f;
  }
  return row;
}
template <class T>
__device__ void store_row(void* data, const heddle_strides& s, int64_t b, int64_t t, int64_t h,
                          int dim, const Row& row, float factor) {
  T* to = address<T>(data, s, b, t, h);
  for (int n = 0; n < kPerLane; ++n) {
    const int d = n * kWarp + static_cast<int>(threadIdx.x);
    if (d < dim) store(to + d, row.x[n] * factor);
  }
}
// Every lane gets the sum.
__device__ float dot(const Row& a, const Row& b) {
  float sum = 0.0f;
  for (int n = 0; n < kPerLane; ++n) sum += a.x[n] * b.x[n];
  for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  return sum;
}
__device__ void add(Row& sums, float weight, const Row& row) {
  for (int n = 0; n < kPerLane; ++n) sums.x[n] += weight * row.x[n];
}

__device__ int64_t first_row() {
  return static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
}
__device__ int64_t row_stride() {
  return static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
}

// ---- kernels ----

// FORWARD and DECODE: out and lse of query i in one pass over its keys. Sums are kept relative to
// the largest score so far and scaled down when a larger one comes.
template <class T>
__global__ void attend_rows(heddle_attention_problem p, heddle_attention_call c) {
  const int64_t rows = p.batch * p.n_head * p.q_len;
  for (int64_t n = first_row(); n < rows; n += row_stride()) {
    const int64_t i = n % p.q_len, h = n / p.q_len % p.n_head, b = n / p.q_len / p.n_head;
    const int64_t kv = h / (p.n_head / p.n_kv_head);
    const bool decode = p.op == HEDDLE_OP_DECODE;
    const int64_t len = decode ? c.kv_len[b] : p.k_len;
    const Range keys = keys_seen(p, decode ? len - p.q_len + i : p.q_pos0 + i - p.k_pos0, len);
    const Row q = load<T>(c.q, p.q, b, i, h, p.head_dim);
    Row sums = {};
    float sum = 0.0f, top = -INFINITY;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const float score = p.scale * dot(q, load<T>(c.k, p.k, b, j, kv, p.head_dim));
      if (score > top) {
        const float shrink = expf(top - score);
        sum *= shrink;
        for (float& x : sums.x) x *= shrink;
        top = score;
      }
      const float weight = expf(score - top);
      sum += weight;
      add(sums, weight, load<T>(c.v, p.v, b, j, kv, p.head_dim));
    }
    const bool empty = keys.begin >= keys.end;
    store_row<T>(c.out, p.out, b, i, h, p.head_dim, sums, empty ? 0.0f : 1.0f / sum);
    if ((p.flags & HEDDLE_FLAG_LSE_OUT) && threadIdx.x == 0) {
      c.lse[b * p.lse_stride_batch + h * p.lse_stride_head + i] = top + logf(sum);
    }
  }
}

struct Weight {
  float weight, score_gradient;
};

// Both passes of BACKWARD need it. delta = out . dout = sum over keys of weight * (dout . v).
template <class T>
__device__ Weight weight_of(const heddle_attention_problem& p, const heddle_attention_call& c,
                            int64_t b, int64_t h, int64_t i, const Row& q, const Row& k,
                            const Row& v, const Row& dout) {
  const float lse = c.lse[b * p.lse_stride_batch + h * p.lse_stride_head + i];
  const float weight = expf(p.scale * dot(q, k) - lse);
  const float delta = dot(load<T>(c.out, p.out, b, i, h, p.head_dim), dout);
  return {weight, weight * (dot(dout, v) - delta) * p.scale};
}

template <class T>
__global__ void dq_rows(heddle_attention_problem p, heddle_attention_call c) {
  const int64_t rows = p.batch * p.n_head * p.q_len;
  for (int64_t n = first_row(); n < rows; n += row_stride()) {
    const int64_t i = n % p.q_len, h = n / p.q_len % p.n_head, b = n / p.q_len / p.n_head;
    const int64_t kv = h / (p.n_head / p.n_kv_head);
    const Range keys = keys_seen(p, p.q_pos0 + i - p.k_pos0, p.k_len);
    const Row q = load<T>(c.q, p.q, b, i, h, p.head_dim);
    const Row dout = load<T>(c.dout, p.dout, b, i, h, p.head_dim);
    Row sums = {};
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Row k = load<T>(c.k, p.k, b, j, kv, p.head_dim);
      const Row v = load<T>(c.v, p.v, b, j, kv, p.head_dim);
      add(sums, weight_of<T>(p, c, b, h, i, q, k, v, dout).score_gradient, k);
    }
    store_row<T>(c.dq, p.dq, b, i, h, p.head_dim, sums, 1.0f);
  }
}

// Sums over all query heads of the group and all queries that see the key: no two warps write the
// same row, so nothing is added atomically and the bits are the same every time.
template <class T>
__global__ void dk_dv_rows(heddle_attention_problem p, heddle_attention_call c) {
  const int64_t rows = p.batch * p.n_kv_head * p.k_len, group = p.n_head / p.n_kv_head;
  for (int64_t n = first_row(); n < rows; n += row_stride()) {
    const int64_t j = n % p.k_len, kv = n / p.k_len % p.n_kv_head, b = n / p.k_len / p.n_kv_head;
    const Range queries = seen_by(p, p.k_pos0 + j - p.q_pos0);
    const Row k = load<T>(c.k, p.k, b, j, kv, p.head_dim);
    const Row v = load<T>(c.v, p.v, b, j, kv, p.head_dim);
    Row dk = {}, dv = {};
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t i = queries.begin; i < queries.end; ++i) {
        const Row q = load<T>(c.q, p.q, b, i, h, p.head_dim);
        const Row dout = load<T>(c.dout, p.dout, b, i, h, p.head_dim);
        const Weight w = weight_of<T>(p, c, b, h, i, q, k, v, dout);
        add(dk, w.score_gradient, q);
        add(dv, w.weight, dout);
      }
    }
    store_row<T>(c.dk, p.dk, b, j, kv, p.head_dim, dk, 1.0f);
    store_row<T>(c.dv, p.dv, b, j, kv, p.head_dim, dv, 1.0f);
  }
}

// ---- the backend ----

using Kernel = void (*)(heddle_attention_problem, heddle_attention_call);

class MyAttention {
 public:
  MyAttention(Host, const heddle_device& device) {
    if (device.arch < 80) {
      throw Failure(HEDDLE_REFUSED, "the GPU is sm_%u, expected sm_80 or newer", device.arch);
    }
  }

  // Name every limit of the kernel here: a yes is a promise that the call will be right.
  void query(const Problem& p, Answer& answer) const {
    answer.require(p->head_dim <= kMaxHeadDim, HEDDLE_REASON_HEAD_DIM, "head_dim", p->head_dim,
                   "in[1,256]", "choose model.n_head so that n_embd / n_head <= 256");
    if (!answer.accepted()) return;
    answer.kernel(p->op == HEDDLE_OP_BACKWARD ? "backward_rows" : "attend_rows");
  }

  void forward(const Call& call) const { attend(call); }
  void decode(const Call& call) const { attend(call); }
  void backward(const Call& call) const {
    const Problem& p = call.problem;
    launch(call, p->batch * p->n_head * p->q_len,
           choose(p, dq_rows<float>, dq_rows<__half>, dq_rows<__nv_bfloat16>));
    launch(call, p->batch * p->n_kv_head * p->k_len,
           choose(p, dk_dv_rows<float>, dk_dv_rows<__half>, dk_dv_rows<__nv_bfloat16>));
  }

 private:
  static void attend(const Call& call) {
    const Problem& p = call.problem;
    launch(call, p->batch * p->n_head * p->q_len,
           choose(p, attend_rows<float>, attend_rows<__half>, attend_rows<__nv_bfloat16>));
  }
  static Kernel choose(const Problem& p, Kernel f32, Kernel f16, Kernel bf16) {
    return p->dtype == HEDDLE_DTYPE_F32 ? f32 : p->dtype == HEDDLE_DTYPE_F16 ? f16 : bf16;
  }
  // Only enqueues: no allocation, no synchronisation, no other stream.
  static void launch(const Call& call, int64_t rows, Kernel kernel) {
    if (rows == 0) return;
    const int64_t blocks = (rows + kWarpsPerBlock - 1) / kWarpsPerBlock;
    const dim3 grid(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
    const dim3 block(kWarp, kWarpsPerBlock);
    kernel<<<grid, block, 0, static_cast<cudaStream_t>(call.stream())>>>(*call.problem, call.raw());
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) throw Failure(HEDDLE_DEVICE_ERROR, "%s", cudaGetErrorString(error));
  }
};

}  // namespace

HEDDLE_ATTENTION_PLUGIN(MyAttention, {.name = "my_attention",
                                      .version = "0.1.0",
                                      .description = "attention by its definition, in CUDA",
                                      .properties = HEDDLE_PROP_CTX_CONCURRENT,
                                      .device_type = HEDDLE_DEVICE_CUDA});
