// BACKWARD on tensor cores. key_gradients_mma computes transposed scores, S^T = K Q^T, so that a
// warp owns 16 keys and the weights P^T and their gradients dS^T stay in its registers as the left
// operand of dV += P^T dO and dK += dS^T Q; only dS goes through shared memory, for dQ.
//
// dQ has two ways: fp32 atomics out of the same kernel, in whatever order blocks come; or
// query_gradients_mma, which computes scores a second time and adds in the order of keys.
#pragma once

#include "kernels/cuda/attention/matrix.cuh"

namespace heddle::kernels::cuda {

template <class T, int kDim>
struct BackwardTile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kKeys = 64;
  static constexpr int kQueries = kDim > 64 ? 32 : 64;  // sums of dK and dV take the registers
  using Keys = Matrix<T, kKeys, kDim>;
  using Queries = Matrix<T, kQueries, kDim>;
  using Scores = Matrix<T, kKeys, kQueries>;
  static constexpr size_t kBytes =
      (2 * Keys::kElements + 2 * Queries::kElements + Scores::kElements) * sizeof(T) +
      2 * kQueries * sizeof(float);
  // query_gradients_mma
  static constexpr int kRows = 64;
  using Rows = Matrix<T, kRows, kDim>;
  static constexpr size_t kDqBytes = (2 * Rows::kElements + 2 * Keys::kElements) * sizeof(T);
};

// dQ of the block's queries += dS K: warps share rows and columns among them.
template <class T, int kDim, class Tile>
__device__ inline void add_dq(const Arguments& a, const typename Tile::Scores& ds,
                              const typename Tile::Keys& k, float* sums, int queries) {
  constexpr int kRowGroups = Tile::kQueries / 16, kColumnGroups = Tile::kWarps / kRowGroups;
  constexpr int kColumns = kDim / kColumnGroups;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp % kRowGroups * 16, column0 = warp / kRowGroups * kColumns;
#pragma unroll 1
  for (int column = column0; column < column0 + kColumns; column += 16) {
    float dq[2][4];
    clear(dq);
#pragma unroll
    for (int key = 0; key < Tile::kKeys; key += 16) {
      uint32_t x[4], y[4];
      load_a_transposed(x, ds, key, row);
      load_b_transposed(y, k, key, column);
      multiply_add<T>(dq[0], x, y[0], y[1]);
      multiply_add<T>(dq[1], x, y[2], y[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int d = column + 8 * n + left();
      if (d >= a.head_dim) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = row + top() + 8 * (i / 2);
        if (query < queries) {
          atomicAdd(sums + static_cast<int64_t>(query) * a.head_dim + d + i % 2, dq[n][i]);
        }
      }
    }
  }
}

template <class T, int kDim, bool kAtomicDq>
__global__ void __launch_bounds__(128) key_gradients_mma(Arguments a) {
  using Tile = BackwardTile<T, kDim>;
  auto* memory = reinterpret_cast<T*>(shared_memory());
  const typename Tile::Keys k{memory}, v{k.data + k.kElements};
  const typename Tile::Queries q{v.data + v.kElements}, dout{q.data + q.kElements};
  const typename Tile::Scores ds{dout.data + dout.kElements};
  auto* lse = reinterpret_cast<float*>(ds.data + ds.kElements);  // times log2 e
  float* delta = lse + Tile::kQueries;
  constexpr int kQueries = Tile::kQueries, kQueryTiles = kQueries / 8, kDimTiles = kDim / 8;

  const KeyTile tile = KeyTile::of_block(a, Tile::kKeys);
  const int warp_key = static_cast<int>(threadIdx.x) / 32 * 16;
  const AttentionMask mask = a.mask;
  const Range keys{tile.key0, min_i64(tile.key0 + Tile::kKeys, mask.k_len)};
  const Range hull = queries_of_keys(mask, keys);
  const BlockRange blocks = query_blocks(mask, keys, kQueries);
  const bool whole = keys.size() == Tile::kKeys;  // rows behind the last key are never unmasked
  Range seen[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t key = tile.key0 + warp_key + top() + 8 * r;
    seen[r] = key < mask.k_len ? queries_of_key(mask, key) : Range{};
  }
  const auto fetch_keys = [&](const typename Tile::Keys& to, const void* data,
                              const TensorStrides& strides) {
    fetch<Tile::kThreads>(to, a.head_dim, data, [&](int row) -> const T* {
      const int64_t key = tile.key0 + row;
      return key < mask.k_len ? row_at<const T>(data, strides, tile.b, key, tile.kv) : nullptr;
    });
  };
  fetch_keys(k, a.at.k, a.k);
  fetch_keys(v, a.at.v, a.v);
  commit_copies();

  const float factor = a.scale * kLog2E;
  float dk[kDimTiles][4], dv[kDimTiles][4];
  clear(dk);
  clear(dv);
  for (int head = tile.kv * a.group; head < (tile.kv + 1) * a.group; ++head) {
    for (int64_t block = blocks.visit.begin; block < blocks.visit.end; ++block) {
      const int64_t query0 = block * kQueries;
      __syncthreads();  // queries of the last block are no longer read
      const auto fetch_queries = [&](const typename Tile::Queries& to, const void* data,
                                     const TensorStrides& strides) {
        fetch<Tile::kThreads>(to, a.head_dim, data, [&](int row) -> const T* {
          return hull.contains(query0 + row)
                     ? row_at<const T>(data, strides, tile.b, query0 + row, head)
                     : nullptr;
        });
      };
      fetch_queries(q, a.at.q, a.q);
      fetch_queries(dout, a.at.dout, a.dout);
      commit_copies();
      for (int n = static_cast<int>(threadIdx.x); n < kQueries; n += Tile::kThreads) {
        const bool here = hull.contains(query0 + n);
        lse[n] = here ? a.at.lse[lse_at(a, tile.b, head, query0 + n)] * kLog2E : 0.0f;
        delta[n] = here ? a.delta[row_number(a, tile.b, head, query0 + n)] : 0.0f;
      }
      wait_copies<0>();
      __syncthreads();

      float p[kQueryTiles][4], g[kQueryTiles][4];  // weights and their gradients, transposed
      clear(p);
      multiply_transposed<T>(p, k, warp_key, q);
      clear(g);
      multiply_transposed<T>(g, v, warp_key, dout);
      const bool masked = !whole || !blocks.unmasked.contains(block);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const LocalRange visible = relative_to(seen[r], query0);
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int query = 8 * n + left() + i;
            float& weight = p[n][2 * r + i];
            float& gradient = g[n][2 * r + i];
            weight = exp2_fast(weight * factor - lse[query]);
            gradient = weight * (gradient - delta[query]);
            if (masked && !visible.contains(query)) weight = gradient = 0.0f;
          }
        }
      }
      multiply_rounded<T>(dv, p, dout);
      if constexpr (kAtomicDq) {
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          store_pair(ds.at(warp_key + top(), 8 * n + left()), g[n][0], g[n][1]);
          store_pair(ds.at(warp_key + top() + 8, 8 * n + left()), g[n][2], g[n][3]);
        }
      }
      multiply_rounded<T>(dk, g, q);
      if constexpr (kAtomicDq) {
        __syncthreads();  // all of dS is here
        const int64_t left_over = mask.q_len - query0;
        add_dq<T, kDim, Tile>(a, ds, k, a.dq_sum + row_number(a, tile.b, head, query0) * a.head_dim,
                              static_cast<int>(min_i64(left_over, kQueries)));
      }
    }
  }
  wait_copies<0>();
  __syncthreads();  // keys and values are no longer read: their rows carry the results out
  const auto target = [&](void* data, const TensorStrides& strides) {
    return [&a, &tile, &mask, data, strides](int row) -> T* {
      const int64_t key = tile.key0 + row;
      return key < mask.k_len ? row_at<T>(data, strides, tile.b, key, tile.kv) : nullptr;
    };
  };
  const float scales[2] = {a.scale, a.scale}, ones[2] = {1.0f, 1.0f};
  store_rows(dk, scales, k, warp_key, a.head_dim, target(a.at.dk, a.dk));
  store_rows(dv, ones, v, warp_key, a.head_dim, target(a.at.dv, a.dv));
}

// dQ in the order of keys: the same bits every time.
template <class T, int kDim>
__global__ void __launch_bounds__(128) query_gradients_mma(Arguments a) {
  using Tile = BackwardTile<T, kDim>;
  auto* memory = reinterpret_cast<T*>(shared_memory());
  const typename Tile::Rows q{memory}, dout{q.data + q.kElements};
  const typename Tile::Keys k{dout.data + dout.kElements}, v{k.data + k.kElements};
  constexpr int kKeys = Tile::kKeys, kKeyTiles = kKeys / 8, kDimTiles = kDim / 8;

  const QueryTile tile = QueryTile::of_block(a, Tile::kRows);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const AttentionMask mask = a.mask;
  const Range tokens = tile.tokens(a, Tile::kRows);
  const Range hull = keys_of_queries(mask, tokens);
  const BlockRange blocks = key_blocks(mask, tokens, kKeys);
  Range seen[2];
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + top() + 8 * r;
    const bool here = tile.holds(a, row);
    const int64_t token = tile.token(a, row), head = tile.head(a, row);
    seen[r] = here ? keys_of_query(mask, token) : Range{};
    lse[r] = here ? a.at.lse[lse_at(a, tile.b, head, token)] * kLog2E : 0.0f;
    delta[r] = here ? a.delta[row_number(a, tile.b, head, token)] : 0.0f;
  }
  const auto fetch_rows = [&](const typename Tile::Rows& to, const void* data,
                              const TensorStrides& strides) {
    fetch<Tile::kThreads>(to, a.head_dim, data, [&](int row) -> const T* {
      if (!tile.holds(a, row)) return nullptr;
      return row_at<const T>(data, strides, tile.b, tile.token(a, row), tile.head(a, row));
    });
  };
  fetch_rows(q, a.at.q, a.q);
  fetch_rows(dout, a.at.dout, a.dout);
  const float factor = a.scale * kLog2E;
  float dq[kDimTiles][4];
  clear(dq);
  for (int64_t block = blocks.visit.begin; block < blocks.visit.end; ++block) {
    const int64_t key0 = block * kKeys;
    __syncthreads();  // keys of the last block are no longer read
    const auto fetch_keys = [&](const typename Tile::Keys& to, const void* data,
                                const TensorStrides& strides) {
      fetch<Tile::kThreads>(to, a.head_dim, data, [&](int row) -> const T* {
        return hull.contains(key0 + row)
                   ? row_at<const T>(data, strides, tile.b, key0 + row, tile.kv)
                   : nullptr;
      });
    };
    fetch_keys(k, a.at.k, a.k);
    fetch_keys(v, a.at.v, a.v);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    float p[kKeyTiles][4], g[kKeyTiles][4];
    clear(p);
    multiply_transposed<T>(p, q, warp_row, k);
    clear(g);
    multiply_transposed<T>(g, dout, warp_row, v);
    const bool masked = !blocks.unmasked.contains(block);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const LocalRange visible = relative_to(seen[r], key0);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          g[n][i] = exp2_fast(p[n][i] * factor - lse[r]) * (g[n][i] - delta[r]);
          if (masked && !visible.contains(8 * n + left() + i % 2)) g[n][i] = 0.0f;
        }
      }
    }
    multiply_rounded<T>(dq, g, k);
  }
  commit_copies();
  wait_copies<0>();  // also where no block was visited
  __syncthreads();
  const float scales[2] = {a.scale, a.scale};
  store_rows(dq, scales, q, warp_row, a.head_dim, [&](int row) -> T* {
    if (!tile.holds(a, row)) return nullptr;
    return row_at<T>(a.at.dq, a.dq, tile.b, tile.token(a, row), tile.head(a, row));
  });
}

}  // namespace heddle::kernels::cuda
