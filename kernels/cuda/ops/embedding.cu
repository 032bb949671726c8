// Tables that token ids look up. Gradients of a table are summed id by id over its rows in order, so
// that no two blocks add to one place.
#include "kernels/cuda/ops/ops.h"
#include "kernels/cuda/ops/parts.cuh"

namespace heddle::kernels::cuda::ops {
namespace {

constexpr unsigned kIndexThreads = 256;
constexpr unsigned kScanThreads = 1024;

__global__ void __launch_bounds__(kIndexThreads)
    count_ids(const int32_t* tokens, int64_t n, int64_t vocab, int32_t* counters, int* status) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
  if (i < n) atomicAdd(counters + checked_id(tokens[i], vocab, status), 1);
}

// Inclusive sums over the block's threads, of both numbers. Shared memory: 2 * 32 ints.
__device__ inline void scan_block(int32_t& x, int32_t& y) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned d = 1; d < 32; d *= 2) {
    const int source = static_cast<int>(lane - d);
    const int32_t left_x = __shfl_sync(0xffffffffu, x, source);
    const int32_t left_y = __shfl_sync(0xffffffffu, y, source);
    if (lane >= d) x += left_x, y += left_y;
  }
  int32_t* sums = reinterpret_cast<int32_t*>(shared_memory());
  if (lane == 31) sums[2 * warp] = x, sums[2 * warp + 1] = y;
  __syncthreads();
  int32_t before_x = 0, before_y = 0;
  for (unsigned w = 0; w < warp; ++w) before_x += sums[2 * w], before_y += sums[2 * w + 1];
  x += before_x;
  y += before_y;
}

// One block; a thread takes neighbouring ids. Counters become the place of each id's first row.
__global__ void __launch_bounds__(kScanThreads)
    place_ids(int64_t n, int64_t vocab, TokenRows rows, int32_t* counters) {
  const int64_t length = (vocab + kScanThreads - 1) / kScanThreads;
  const int64_t begin = length * threadIdx.x;
  const int64_t end = begin + length < vocab ? begin + length : vocab;
  int32_t mine = 0, ids = 0;
  for (int64_t id = begin; id < end; ++id) {
    mine += counters[id];
    ids += counters[id] > 0 ? 1 : 0;
  }
  int32_t row = mine, unique = ids;
  scan_block(row, unique);
  if (threadIdx.x == kScanThreads - 1) {
    for (int64_t u = unique; u < rows.bound; ++u) rows.ids[u] = 0;
    for (int64_t u = unique; u <= rows.bound; ++u) rows.starts[u] = static_cast<int32_t>(n);
  }
  row -= mine;
  unique -= ids;
  for (int64_t id = begin; id < end; ++id) {
    const int32_t count = counters[id];
    if (count == 0) continue;
    rows.ids[unique] = static_cast<int32_t>(id);
    rows.starts[unique++] = row;
    counters[id] = row;
    row += count;
  }
}

// Rows of an id in any order; afterwards a counter is the end of its id's rows.
__global__ void __launch_bounds__(kIndexThreads)
    place_rows(const int32_t* tokens, int64_t n, int64_t vocab, int32_t* counters, int* status,
               int32_t* unordered) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t id = checked_id(tokens[i], vocab, status);
  unordered[atomicAdd(counters + id, 1)] = static_cast<int32_t>(i);
}

// A row's place among those of its id is the number of smaller ones.
__global__ void __launch_bounds__(kIndexThreads)
    order_rows(TokenRows rows, int64_t n, const int32_t* unordered) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
  if (at >= n) return;
  int64_t low = 0, high = rows.bound;  // the id whose rows hold `at`: starts[low] <= at
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (rows.starts[middle] <= at ? low : high) = middle;
  }
  const int32_t row = unordered[at], begin = rows.starts[low], end = rows.starts[low + 1];
  int32_t smaller = 0;
  for (int32_t other = begin; other < end; ++other) smaller += unordered[other] < row ? 1 : 0;
  rows.order[begin + smaller] = row;
}

__global__ void __launch_bounds__(kIndexThreads)
    clear_counters(TokenRows rows, int32_t* counters) {
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
  if (u < rows.bound && rows.starts[u] < rows.starts[u + 1]) counters[rows.ids[u]] = 0;
}

__global__ void __launch_bounds__(kThreads) embed_norm_rows(EmbedNorm op) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for_my_rows(op.n, [&](int64_t n) {
    const float* row = op.table + checked_id(op.tokens[n], op.vocab, op.status) * op.table_ld;
    float* u = op.u + n * op.channels;
    float squares = 0.0f;
    for (int64_t c = lane; c < op.channels; c += 32) squares += row[c] * row[c];
    const float rstd = reciprocal_rms(warp_sum(squares), op.channels, op.eps);
    if (lane == 0) op.rstd[n] = rstd;
    for (int64_t c = lane; c < op.channels; c += 32) u[c] = row[c] * rstd;
  });
}

__global__ void __launch_bounds__(kThreads) row_means(EmbedNormGrad op, float* mean) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for_my_rows(op.n, [&](int64_t n) {
    const int64_t at = n * op.channels;
    float along = 0.0f;
    for (int64_t c = lane; c < op.channels; c += 32) along += op.du[at + c] * op.u[at + c];
    along = warp_sum(along);
    if (lane == 0) mean[n] = along / static_cast<float>(op.channels);
  });
}

// A block takes an id and kThreads of its columns: f(row) for the id's rows in order is summed.
template <class F>
__device__ inline void add_rows_of_id(const TokenRows& rows, int64_t cols, float* table, int64_t ld,
                                      F&& f) {
  const int64_t cuts = (cols + kThreads - 1) / kThreads;
  const int64_t u = blockIdx.x / cuts;
  const int64_t c = static_cast<int64_t>(blockIdx.x) % cuts * kThreads + threadIdx.x;
  const int32_t begin = rows.starts[u], end = rows.starts[u + 1];
  if (begin == end || c >= cols) return;
  float* to = table + rows.ids[u] * ld + c;
  float sum = *to;
#pragma unroll 4
  for (int32_t r = begin; r < end; ++r) sum += f(static_cast<int64_t>(rows.order[r]), c);
  *to = sum;
}
unsigned id_blocks(const TokenRows& rows, int64_t cols) {
  return static_cast<unsigned>(rows.bound * ((cols + kThreads - 1) / kThreads));
}

__global__ void __launch_bounds__(kThreads) embed_norm_ids(EmbedNormGrad op, const float* mean) {
  add_rows_of_id(op.rows, op.channels, op.dtable, op.dtable_ld, [&](int64_t n, int64_t c) {
    const int64_t at = n * op.channels + c;
    return op.rstd[n] * (op.du[at] - op.u[at] * mean[n]);
  });
}

__global__ void __launch_bounds__(kThreads) value_embed_rows(ValueEmbed op) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for_my_rows(op.n * op.n_kv_head, [&](int64_t row) {
    const int64_t n = row / op.n_kv_head, k = row % op.n_kv_head;
    const float* h = op.h + n * op.channels;
    const float* wg = op.wg + k * kGateInputs;
    const float gate = 3.0f * sigmoid(warp_sum(lane < kGateInputs ? h[lane] * wg[lane] : 0.0f));
    if (lane == 0) op.gate[row] = gate;
    const float* from = op.table + checked_id(op.tokens[n], op.vocab, op.status) * op.table_ld +
                        k * op.head_dim;
    float* v = op.v + n * op.v_ld + k * op.head_dim;
    for (int64_t i = lane; i < op.head_dim; i += 32) v[i] += gate * from[i];
  });
}

// ds (N, K): gradients of the gates' arguments; dh. gate = 3 s: d gate / d argument = 3 s (1 - s).
__global__ void __launch_bounds__(kThreads) value_gate_rows(ValueEmbedGrad op, float* ds) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for_my_rows(op.n, [&](int64_t n) {
    const int32_t id = op.tokens[n];
    const float* row = op.table + (id >= 0 && id < op.vocab ? id : 0) * op.table_ld;
    const float* dv = op.dv + n * op.dv_ld;
    float dh = 0.0f;
    for (int64_t k = 0; k < op.n_kv_head; ++k) {
      float along = 0.0f;
      for (int64_t i = lane; i < op.head_dim; i += 32) {
        along += dv[k * op.head_dim + i] * row[k * op.head_dim + i];
      }
      const float gate = op.gate[n * op.n_kv_head + k];
      const float d = warp_sum(along) * gate * (1.0f - gate * (1.0f / 3.0f));
      if (lane == 0) ds[n * op.n_kv_head + k] = d;
      if (lane < kGateInputs) dh += d * op.wg[k * kGateInputs + lane];
    }
    if (lane < kGateInputs) op.dh[n * op.channels + lane] += dh;
  });
}

// A block's part of dwg = ds^T h[:, 0:12] over its rows; a thread takes places of dwg.
__global__ void __launch_bounds__(kThreads)
    value_gate_weights(ValueEmbedGrad op, const float* ds, double* partial) {
  const int64_t length = (op.n + gridDim.x - 1) / gridDim.x;
  const int64_t begin = length * blockIdx.x;
  const int64_t end = begin + length < op.n ? begin + length : op.n;
  const int64_t width = op.n_kv_head * kGateInputs;
  for (int64_t j = threadIdx.x; j < width; j += kThreads) {
    const int64_t k = j / kGateInputs, i = j % kGateInputs;
    double sum = 0;
    for (int64_t n = begin; n < end; ++n) {
      sum += static_cast<double>(ds[n * op.n_kv_head + k]) * op.h[n * op.channels + i];
    }
    partial[blockIdx.x * width + j] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) value_embed_ids(ValueEmbedGrad op) {
  add_rows_of_id(op.rows, op.n_kv_head * op.head_dim, op.dtable, op.dtable_ld,
                 [&](int64_t n, int64_t c) {
                   return op.gate[n * op.n_kv_head + c / op.head_dim] * op.dv[n * op.dv_ld + c];
                 });
}

constexpr int64_t kLeastGateRows = 64;  // of a piece

}  // namespace

size_t index_tokens_workspace(int64_t n) {
  Pieces pieces(nullptr);
  pieces.take<int32_t>(n);
  return pieces.used();
}
cudaError_t index_tokens(const int32_t* tokens, int64_t n, int64_t vocab, const TokenRows& rows,
                         int32_t* counters, int* status, void* workspace, cudaStream_t stream) {
  auto* unordered = Pieces(workspace).take<int32_t>(n);
  const auto blocks = static_cast<unsigned>((n + kIndexThreads - 1) / kIndexThreads);
  cudaError_t error =
      launch(count_ids, blocks, kIndexThreads, 0, stream, tokens, n, vocab, counters, status);
  if (error != cudaSuccess) return error;
  error = launch(place_ids, 1, kScanThreads, 2 * 32 * sizeof(int32_t), stream, n, vocab, rows,
                 counters);
  if (error != cudaSuccess) return error;
  error = launch(place_rows, blocks, kIndexThreads, 0, stream, tokens, n, vocab, counters, status,
                 unordered);
  if (error != cudaSuccess) return error;
  error = launch(order_rows, blocks, kIndexThreads, 0, stream, rows, n, unordered);
  if (error != cudaSuccess) return error;
  return launch(clear_counters, static_cast<unsigned>((rows.bound + kIndexThreads - 1) /
                                                      kIndexThreads),
                kIndexThreads, 0, stream, rows, counters);
}

cudaError_t embed_norm_forward(const EmbedNorm& op, cudaStream_t stream) {
  return launch(embed_norm_rows, blocks_for(op.n, kWarps), kThreads, 0, stream, op);
}

size_t embed_norm_backward_workspace(int64_t n) {
  Pieces pieces(nullptr);
  pieces.take<float>(n);
  return pieces.used();
}
cudaError_t embed_norm_backward(const EmbedNormGrad& op, void* workspace, cudaStream_t stream) {
  auto* mean = Pieces(workspace).take<float>(op.n);
  const cudaError_t error =
      launch(row_means, blocks_for(op.n, kWarps), kThreads, 0, stream, op, mean);
  if (error != cudaSuccess) return error;
  return launch(embed_norm_ids, id_blocks(op.rows, op.channels), kThreads, 0, stream, op, mean);
}

cudaError_t value_embed_forward(const ValueEmbed& op, cudaStream_t stream) {
  return launch(value_embed_rows, blocks_for(op.n * op.n_kv_head, kWarps), kThreads, 0, stream, op);
}

size_t value_embed_backward_workspace(int64_t n, int64_t n_kv_head) {
  Pieces pieces(nullptr);
  pieces.take<float>(n * n_kv_head);
  pieces.take<double>(pieces_of(n, kLeastGateRows) * n_kv_head * kGateInputs);
  return pieces.used();
}
cudaError_t value_embed_backward(const ValueEmbedGrad& op, void* workspace, cudaStream_t stream) {
  const int64_t pieces = pieces_of(op.n, kLeastGateRows), width = op.n_kv_head * kGateInputs;
  Pieces memory(workspace);
  auto* ds = memory.take<float>(op.n * op.n_kv_head);
  auto* partial = memory.take<double>(pieces * width);
  cudaError_t error =
      launch(value_gate_rows, blocks_for(op.n, kWarps), kThreads, 0, stream, op, ds);
  if (error != cudaSuccess) return error;
  error = launch(value_gate_weights, static_cast<unsigned>(pieces), kThreads, 0, stream, op, ds,
                 partial);
  if (error != cudaSuccess) return error;
  error = enqueue_add_pieces(partial, pieces, width, 0, width, 1.0f, op.dwg, stream);
  if (error != cudaSuccess) return error;
  return launch(value_embed_ids, id_blocks(op.rows, op.n_kv_head * op.head_dim), kThreads, 0,
                stream, op);
}

}  // namespace heddle::kernels::cuda::ops
