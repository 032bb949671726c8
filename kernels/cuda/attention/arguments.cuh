// What every kernel gets, and which part of the problem a block works on.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/hardware/call_site.h"

namespace heddle::kernels::cuda {

inline constexpr float kLog2E = 1.44269504088896340736f;

struct Arguments {
  AttentionPointers at;
  TensorStrides q, k, v, out, dout, dq, dk, dv;
  int64_t lse_batch, lse_head;
  AttentionMask mask;
  int64_t batch;
  int n_head, n_kv_head, head_dim, group;
  float scale;
  int splits;       // decode: blocks that share the keys of a row
  float* delta;     // (B, H, Tq): out . dout of every row
  float* dq_sum;    // (B, H, Tq, D), unscaled
  float* part_out;  // (splits, B, H, Tq, D) and (splits, B, H, Tq): results of the splits
  float* part_lse;
};

// The mask of one batch row.
__device__ inline AttentionMask mask_of(const Arguments& a, int64_t b) {
  AttentionMask m = a.mask;
  if (a.at.kv_len) {
    m.k_len = clamp_i64(a.at.kv_len[b], 0, a.mask.k_len);
    m.q_pos0 = m.k_len - m.q_len;
    m.k_pos0 = 0;
  }
  return m;
}

// A tile of queries: rows of one kv head, packed (token, head of the group), so that a tile of few
// tokens still fills its rows and keys are read once for all heads of the group.
struct QueryTile {
  int64_t b;
  int kv, split;
  int64_t row0;  // of token * group + head of the group

  // Blocks are numbered with the heaviest tiles of all heads first: under a causal mask these are
  // the last ones.
  __device__ static QueryTile of_block(const Arguments& a, int rows) {
    const int64_t heads = a.batch * a.n_kv_head;
    const int64_t tiles = ceil_div(a.mask.q_len * a.group, rows);
    int64_t n = blockIdx.x;
    const int64_t bh = n % heads;
    n /= heads;
    const int split = static_cast<int>(n % a.splits);
    const int64_t tile = tiles - 1 - n / a.splits;
    return {bh / a.n_kv_head, static_cast<int>(bh % a.n_kv_head), split, tile * rows};
  }

  __device__ int64_t token(const Arguments& a, int row) const { return (row0 + row) / a.group; }
  __device__ int head(const Arguments& a, int row) const {
    return kv * a.group + static_cast<int>((row0 + row) % a.group);
  }
  __device__ bool holds(const Arguments& a, int row) const {
    return row0 + row < a.mask.q_len * a.group;
  }
  __device__ Range tokens(const Arguments& a, int rows) const {
    return {token(a, 0), min_i64(token(a, rows - 1) + 1, a.mask.q_len)};
  }
  // Key blocks of this tile's split.
  __device__ Range my_share(const Arguments& a, Range visit) const {
    if (a.splits == 1 || visit.empty()) return visit;
    const int64_t n = visit.size();
    return {visit.begin + n * split / a.splits, visit.begin + n * (split + 1) / a.splits};
  }
};

// A tile of keys of one kv head.
struct KeyTile {
  int64_t b;
  int kv;
  int64_t key0;

  // The first keys have the most queries under a causal mask.
  __device__ static KeyTile of_block(const Arguments& a, int keys) {
    const int64_t heads = a.batch * a.n_kv_head;
    const int64_t bh = blockIdx.x % heads, tile = blockIdx.x / heads;
    return {bh / a.n_kv_head, static_cast<int>(bh % a.n_kv_head), tile * keys};
  }
};

// Ranges within a tile, as 32-bit numbers relative to `origin`.
struct LocalRange {
  int begin, end;
  __device__ bool contains(int i) const { return i >= begin && i < end; }
};
// Of numbers that 32 bits hold.
__device__ inline LocalRange as_local(Range r) {
  return {static_cast<int>(r.begin), static_cast<int>(r.end)};
}
__device__ inline LocalRange relative_to(Range r, int64_t origin) {
  constexpr int64_t kFar = 1 << 30;
  return {static_cast<int>(clamp_i64(r.begin - origin, -kFar, kFar)),
          static_cast<int>(clamp_i64(r.end - origin, -kFar, kFar))};
}

template <class T, class P>
__device__ inline T* row_at(P* data, const TensorStrides& s, int64_t b, int64_t t, int64_t h) {
  return static_cast<T*>(data) + (b * s.batch + t * s.token + h * s.head);
}
__device__ inline int64_t lse_at(const Arguments& a, int64_t b, int64_t h, int64_t t) {
  return b * a.lse_batch + h * a.lse_head + t;
}
// Of contiguous (B, H, Tq) arrays.
__device__ inline int64_t row_number(const Arguments& a, int64_t b, int64_t h, int64_t t) {
  return (b * a.n_head + h) * a.mask.q_len + t;
}

}  // namespace heddle::kernels::cuda
