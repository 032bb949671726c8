// The plain fp32 kernels: no tensor core, any head_dim, any stride, every sum in a fixed order. For
// parity hunts, so written to be read. Tiles of 32 rows and 32 keys; four threads share a row, each
// holding every fourth element of it.
#pragma once

#include "kernels/cuda/attention/arguments.cuh"
#include "kernels/cuda/hardware/shared.h"

namespace heddle::kernels::cuda::plain {

inline constexpr int kTile = 32;
inline constexpr int kThreads = 128;
inline constexpr int kSharers = kThreads / kTile;  // threads of a row
inline constexpr int kColumns = kTile / kSharers;  // of a thread in a tile of scores

// A tile of rows in shared memory; one element more per row keeps its columns in different banks.
template <int kDim>
struct Rows {
  static constexpr int kStride = kDim + 1;
  static constexpr int kFloats = kTile * kStride;
  float* data;
  __device__ float* operator[](int row) const { return data + row * kStride; }
};
// Scores, or what became of them.
struct Square {
  static constexpr int kStride = kTile + 1;
  static constexpr int kFloats = kTile * kStride;
  float* data;
  __device__ float* operator[](int row) const { return data + row * kStride; }
};

template <int kDim>
inline constexpr size_t kAttendBytes = (3 * Rows<kDim>::kFloats + Square::kFloats) * sizeof(float);
template <int kDim>
inline constexpr size_t kBackwardBytes = (4 * Rows<kDim>::kFloats + 2 * Square::kFloats) *
                                         sizeof(float);

// Fills a tile: source(row) is the address of its row or null for a row of zeros.
template <int kDim, class Source>
__device__ void stage(const Rows<kDim>& to, int dim, Source&& source) {
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kTile; row += kThreads / 32) {
    const float* from = source(row);
    for (int d = static_cast<int>(threadIdx.x) % 32; d < dim; d += 32) {
      to[row][d] = from ? from[d] : 0.0f;
    }
  }
}

// Rows of one head from token `first` on; those outside of `wanted` are zeros.
template <int kDim>
__device__ void stage_tokens(const Rows<kDim>& to, int dim, const void* from,
                             const TensorStrides& strides, int64_t b, int head, int64_t first,
                             Range wanted) {
  stage(to, dim, [&](int r) {
    return wanted.contains(first + r) ? row_at<const float>(from, strides, b, first + r, head)
                                      : nullptr;
  });
}

// The (token, head) rows of a tile of queries.
template <int kDim>
__device__ void stage_queries(const Rows<kDim>& to, const Arguments& a, const void* from,
                              const TensorStrides& strides, const QueryTile& tile) {
  stage(to, a.head_dim, [&](int r) -> const float* {
    if (!tile.holds(a, r)) return nullptr;
    return row_at<const float>(from, strides, tile.b, tile.token(a, r), tile.head(a, r));
  });
}

// In eight partial sums: the rounding of one long sum would show in gradients that cancel.
__device__ inline float dot(const float* x, const float* y, int dim) {
  constexpr int kParts = 8;
  float sums[kParts] = {};
  int d = 0;
  for (; d + kParts <= dim; d += kParts) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) sums[i] += x[d + i] * y[d + i];
  }
  for (; d < dim; ++d) sums[0] += x[d] * y[d];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}
// Of the threads that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Sums of one row, kept relative to the largest score so far.
template <int kDim>
struct Softmax {
  float out[kDim / kSharers] = {};
  float top = -INFINITY, sum = 0.0f;

  // Scores become weights.
  __device__ void add(float (&scores)[kColumns]) {
    float most = top;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) most = fmaxf(most, scores[i]);
    most = row_max(most);
    const float base = most == -INFINITY ? 0.0f : most;  // nothing seen yet, or only NaN
    const float shrink = expf(top - base);
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < kDim / kSharers; ++i) out[i] *= shrink;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      scores[i] = expf(scores[i] - base);
      sum += scores[i];
    }
    top = most;
  }
};

// FORWARD and DECODE.
template <int kDim>
__global__ void __launch_bounds__(kThreads) attend(Arguments a) {
  auto* memory = reinterpret_cast<float*>(shared_memory());
  const Rows<kDim> q{memory}, k{q.data + q.kFloats}, v{k.data + k.kFloats};
  const Square weights{v.data + v.kFloats};
  const QueryTile tile = QueryTile::of_block(a, kTile);
  const int row = static_cast<int>(threadIdx.x) / kSharers;
  const int part = static_cast<int>(threadIdx.x) % kSharers;
  const int dim = a.head_dim;
  const AttentionMask mask = mask_of(a, tile.b);
  const Range tokens = tile.tokens(a, kTile);
  const Range hull = keys_of_queries(mask, tokens);
  const BlockRange blocks = key_blocks(mask, tokens, kTile);
  const bool mine = tile.holds(a, row);
  const Range seen = mine ? keys_of_query(mask, tile.token(a, row)) : Range{};

  stage_queries(q, a, a.at.q, a.q, tile);
  Softmax<kDim> softmax;
  const Range share = tile.my_share(a, blocks.visit);
  for (int64_t n = share.begin; n < share.end; ++n) {
    const int64_t key0 = n * kTile;
    __syncthreads();
    stage_tokens(k, dim, a.at.k, a.k, tile.b, tile.kv, key0, hull);
    stage_tokens(v, dim, a.at.v, a.v, tile.b, tile.kv, key0, hull);
    __syncthreads();
    const LocalRange visible = relative_to(seen, key0);
    float scores[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = part + kSharers * i;
      scores[i] = visible.contains(column) ? a.scale * dot(q[row], k[column], dim) : -INFINITY;
    }
    softmax.add(scores);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) weights[row][part + kSharers * i] = scores[i];
    __syncwarp();
    for (int column = 0; column < kTile; ++column) {
      const float weight = weights[row][column];
#pragma unroll
      for (int i = 0; i < kDim / kSharers; ++i) {
        const int d = part + kSharers * i;
        if (d < dim) softmax.out[i] += weight * v[column][d];
      }
    }
    __syncwarp();
  }

  const float sum = row_sum(softmax.sum);
  if (!mine) return;
  const float share_of_one = sum == 0.0f ? 0.0f : 1.0f / sum;
  const float lse = sum == 0.0f ? -INFINITY : softmax.top + logf(sum);
  const int64_t token = tile.token(a, row), head = tile.head(a, row);
  float* out;
  if (a.splits == 1) {
    out = row_at<float>(a.at.out, a.out, tile.b, token, head);
    if (a.at.lse && part == 0) a.at.lse[lse_at(a, tile.b, head, token)] = lse;
  } else {
    const int64_t n =
        tile.split * (a.batch * a.n_head * a.mask.q_len) + row_number(a, tile.b, head, token);
    out = a.part_out + n * dim;
    if (part == 0) a.part_lse[n] = lse;
  }
#pragma unroll
  for (int i = 0; i < kDim / kSharers; ++i) {
    const int d = part + kSharers * i;
    if (d < dim) out[d] = softmax.out[i] * share_of_one;
  }
}

struct Gradients {
  float weight, score;  // p and ds, ds without the scale
};
__device__ inline Gradients gradients(float score, float lse, float dot_dout_v, float delta) {
  const float weight = expf(score - lse);
  return {weight, weight * (dot_dout_v - delta)};
}

// dk and dv of a tile of keys: over the heads of the group and the query blocks that see it.
template <int kDim>
__global__ void __launch_bounds__(kThreads) key_gradients(Arguments a) {
  auto* memory = reinterpret_cast<float*>(shared_memory());
  const Rows<kDim> k{memory}, v{k.data + k.kFloats}, q{v.data + v.kFloats},
      dout{q.data + q.kFloats};
  const Square p{dout.data + dout.kFloats}, ds{p.data + p.kFloats};
  const KeyTile tile = KeyTile::of_block(a, kTile);
  const int row = static_cast<int>(threadIdx.x) / kSharers;  // a key
  const int part = static_cast<int>(threadIdx.x) % kSharers;
  const int dim = a.head_dim;
  const AttentionMask mask = a.mask;
  const bool mine = tile.key0 + row < mask.k_len;
  const Range seen = mine ? queries_of_key(mask, tile.key0 + row) : Range{};
  const Range keys{tile.key0, min_i64(tile.key0 + kTile, mask.k_len)};
  const Range hull = queries_of_keys(mask, keys);
  const BlockRange blocks = query_blocks(mask, keys, kTile);

  stage_tokens(k, dim, a.at.k, a.k, tile.b, tile.kv, tile.key0, keys);
  stage_tokens(v, dim, a.at.v, a.v, tile.b, tile.kv, tile.key0, keys);
  float dk[kDim / kSharers] = {}, dv[kDim / kSharers] = {};
  for (int head = tile.kv * a.group; head < (tile.kv + 1) * a.group; ++head) {
    for (int64_t n = blocks.visit.begin; n < blocks.visit.end; ++n) {
      const int64_t token0 = n * kTile;
      __syncthreads();
      stage_tokens(q, dim, a.at.q, a.q, tile.b, head, token0, hull);
      stage_tokens(dout, dim, a.at.dout, a.dout, tile.b, head, token0, hull);
      __syncthreads();
      const LocalRange visible = relative_to(seen, token0);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = part + kSharers * i;
        Gradients g{0.0f, 0.0f};
        if (visible.contains(column)) {
          g = gradients(a.scale * dot(q[column], k[row], dim),
                        a.at.lse[lse_at(a, tile.b, head, token0 + column)],
                        dot(dout[column], v[row], dim),
                        a.delta[row_number(a, tile.b, head, token0 + column)]);
        }
        p[row][column] = g.weight;
        ds[row][column] = g.score;
      }
      __syncwarp();
      for (int column = 0; column < kTile; ++column) {
        if (!visible.contains(column)) continue;
        const float weight = p[row][column], score = ds[row][column];
#pragma unroll
        for (int i = 0; i < kDim / kSharers; ++i) {
          const int d = part + kSharers * i;
          if (d >= dim) continue;
          dk[i] += score * q[column][d];
          dv[i] += weight * dout[column][d];
        }
      }
      __syncwarp();
    }
  }
  if (!mine) return;
  float* dk_row = row_at<float>(a.at.dk, a.dk, tile.b, tile.key0 + row, tile.kv);
  float* dv_row = row_at<float>(a.at.dv, a.dv, tile.b, tile.key0 + row, tile.kv);
#pragma unroll
  for (int i = 0; i < kDim / kSharers; ++i) {
    const int d = part + kSharers * i;
    if (d >= dim) continue;
    dk_row[d] = dk[i] * a.scale;
    dv_row[d] = dv[i];
  }
}

// dq of a tile of queries.
template <int kDim>
__global__ void __launch_bounds__(kThreads) query_gradients(Arguments a) {
  auto* memory = reinterpret_cast<float*>(shared_memory());
  const Rows<kDim> q{memory}, dout{q.data + q.kFloats}, k{dout.data + dout.kFloats},
      v{k.data + k.kFloats};
  const Square ds{v.data + v.kFloats};
  const QueryTile tile = QueryTile::of_block(a, kTile);
  const int row = static_cast<int>(threadIdx.x) / kSharers;
  const int part = static_cast<int>(threadIdx.x) % kSharers;
  const int dim = a.head_dim;
  const AttentionMask mask = a.mask;
  const Range tokens = tile.tokens(a, kTile);
  const Range hull = keys_of_queries(mask, tokens);
  const BlockRange blocks = key_blocks(mask, tokens, kTile);
  const bool mine = tile.holds(a, row);
  const int64_t token = tile.token(a, row), head = tile.head(a, row);
  const Range seen = mine ? keys_of_query(mask, token) : Range{};
  const float lse = mine ? a.at.lse[lse_at(a, tile.b, head, token)] : 0.0f;
  const float delta = mine ? a.delta[row_number(a, tile.b, head, token)] : 0.0f;

  stage_queries(q, a, a.at.q, a.q, tile);
  stage_queries(dout, a, a.at.dout, a.dout, tile);
  float dq[kDim / kSharers] = {};
  for (int64_t n = blocks.visit.begin; n < blocks.visit.end; ++n) {
    const int64_t key0 = n * kTile;
    __syncthreads();
    stage_tokens(k, dim, a.at.k, a.k, tile.b, tile.kv, key0, hull);
    stage_tokens(v, dim, a.at.v, a.v, tile.b, tile.kv, key0, hull);
    __syncthreads();
    const LocalRange visible = relative_to(seen, key0);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = part + kSharers * i;
      float score = 0.0f;
      if (visible.contains(column)) {
        score = gradients(a.scale * dot(q[row], k[column], dim), lse,
                          dot(dout[row], v[column], dim), delta)
                    .score;
      }
      ds[row][column] = score;
    }
    __syncwarp();
    for (int column = 0; column < kTile; ++column) {
      if (!visible.contains(column)) continue;
      const float score = ds[row][column];
#pragma unroll
      for (int i = 0; i < kDim / kSharers; ++i) {
        const int d = part + kSharers * i;
        if (d < dim) dq[i] += score * k[column][d];
      }
    }
    __syncwarp();
  }
  if (!mine) return;
  float* to = row_at<float>(a.at.dq, a.dq, tile.b, token, head);
#pragma unroll
  for (int i = 0; i < kDim / kSharers; ++i) {
    const int d = part + kSharers * i;
    if (d < dim) to[d] = dq[i] * a.scale;
  }
}

}  // namespace heddle::kernels::cuda::plain
