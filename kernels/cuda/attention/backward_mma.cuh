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

// How warps share rows and columns of a block's dQ.
template <class Tile, int kDim>
struct DqShare {
  static constexpr int kRowGroups = Tile::kQueries / 16;
  static constexpr int kColumns = kDim / (Tile::kWarps / kRowGroups);
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 32 % kRowGroups * 16; }
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) / 32 / kRowGroups * kColumns;
  }
};

// dQ of the block's queries += dS K. sums: of the calling thread's first element.
template <class T, int kDim, class Tile>
__device__ inline void add_dq(const typename Tile::Scores& ds, const typename Tile::Keys& k,
                              float* sums, int dim, LocalRange queries) {
  using My = DqShare<Tile, kDim>;
  float dq[My::kColumns / 8][4];
  clear(dq);
#pragma unroll
  for (int key = 0; key < Tile::kKeys; key += 16) {
    uint32_t x[4], y[4];
    load_a_transposed(x, ds, key, My::row());
#pragma unroll
    for (int n = 0; n < My::kColumns / 8; n += 2) {
      load_b_transposed(y, k, key, My::column() + 8 * n);
      multiply_add<T>(dq[n], x, y[0], y[1]);
      multiply_add<T>(dq[n + 1], x, y[2], y[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool here = queries.contains(My::row() + top() + 8 * r);
    float* to = sums + r * 8 * static_cast<int64_t>(dim);
#pragma unroll
    for (int n = 0; n < My::kColumns / 8; ++n) {
      if (!here || My::column() + 8 * n >= dim) continue;
      atomicAdd(to + 8 * n, dq[n][2 * r]);
      atomicAdd(to + 8 * n + 1, dq[n][2 * r + 1]);
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
    Stream<Tile::kThreads, T, Tile::kKeys, kDim>(
        row_at<const T>(data, strides, tile.b, tile.key0, tile.kv), strides.token, a.head_dim, 0)
        .fetch(to, {0, static_cast<int>(keys.size())});
  };
  fetch_keys(k, a.at.k, a.k);
  fetch_keys(v, a.at.v, a.v);
  commit_copies();

  const float factor = a.scale * kLog2E;
  float dk[kDimTiles][4], dv[kDimTiles][4];
  clear(dk);
  clear(dv);
  const LocalRange visit = as_local(blocks.visit), unmasked = as_local(blocks.unmasked);
  const BlockRows<kQueries> rows(hull);
  using Queries = Stream<Tile::kThreads, T, kQueries, kDim>;
  using MyDq = DqShare<Tile, kDim>;
  // A thread brings one number: lse of a query, or delta.
  static_assert(Tile::kThreads >= 2 * kQueries);
  const int my_query = static_cast<int>(threadIdx.x) % kQueries;
  const bool brings_lse = static_cast<int>(threadIdx.x) < kQueries;
  const bool brings = static_cast<int>(threadIdx.x) < 2 * kQueries;
  const int64_t query00 = int64_t{visit.begin} * kQueries;
  for (int head = tile.kv * a.group; head < (tile.kv + 1) * a.group; ++head) {
    Queries next_q(row_at<const T>(a.at.q, a.q, tile.b, 0, head), a.q.token, a.head_dim,
                   visit.begin);
    Queries next_dout(row_at<const T>(a.at.dout, a.dout, tile.b, 0, head), a.dout.token, a.head_dim,
                      visit.begin);
    const float* number = brings_lse ? a.at.lse + lse_at(a, tile.b, head, query00 + my_query)
                                     : a.delta + row_number(a, tile.b, head, query00 + my_query);
    float* dq = nullptr;
    if constexpr (kAtomicDq) {
      dq = a.dq_sum + row_number(a, tile.b, head, query00 + MyDq::row() + top()) * a.head_dim +
           MyDq::column() + left();
    }
    for (int block = visit.begin; block < visit.end; ++block) {
      const LocalRange here = rows.of(block);
      __syncthreads();  // queries of the last block are no longer read
      next_q.fetch(q, here);
      next_dout.fetch(dout, here);
      commit_copies();
      next_q.move(1);
      next_dout.move(1);
      if (brings) {
        lse[threadIdx.x] = here.contains(my_query) ? *number * (brings_lse ? kLog2E : 1.0f) : 0.0f;
      }
      number += kQueries;
      wait_copies<0>();
      __syncthreads();

      float p[kQueryTiles][4], g[kQueryTiles][4];  // weights and their gradients, transposed
      clear(p);
      multiply_transposed<T>(p, k, warp_key, q);
      clear(g);
      multiply_transposed<T>(g, v, warp_key, dout);
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int query = 8 * n + left() + i % 2;
          p[n][i] = exp2_fast(p[n][i] * factor - lse[query]);
          g[n][i] = p[n][i] * (g[n][i] - delta[query]);
        }
      }
      if (!whole || !unmasked.contains(block)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const LocalRange visible = relative_to(seen[r], int64_t{block} * kQueries);
#pragma unroll
          for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; ++i) {
              if (!visible.contains(8 * n + left() + i % 2)) p[n][i] = g[n][i] = 0.0f;
            }
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
        add_dq<T, kDim, Tile>(ds, k, dq, a.head_dim, here);
        dq += int64_t{kQueries} * a.head_dim;
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
  const LocalRange visit = as_local(blocks.visit), unmasked = as_local(blocks.unmasked);
  const BlockRows<kKeys> rows(hull);
  using Keys = Stream<Tile::kThreads, T, kKeys, kDim>;
  Keys next_k(row_at<const T>(a.at.k, a.k, tile.b, 0, tile.kv), a.k.token, a.head_dim, visit.begin);
  Keys next_v(row_at<const T>(a.at.v, a.v, tile.b, 0, tile.kv), a.v.token, a.head_dim, visit.begin);
  for (int block = visit.begin; block < visit.end; ++block) {
    const LocalRange here = rows.of(block);
    __syncthreads();  // keys of the last block are no longer read
    next_k.fetch(k, here);
    next_v.fetch(v, here);
    next_k.move(1);
    next_v.move(1);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    float p[kKeyTiles][4], g[kKeyTiles][4];
    clear(p);
    multiply_transposed<T>(p, q, warp_row, k);
    clear(g);
    multiply_transposed<T>(g, dout, warp_row, v);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        g[n][i] = exp2_fast(p[n][i] * factor - lse[i / 2]) * (g[n][i] - delta[i / 2]);
      }
    }
    if (!unmasked.contains(block)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const LocalRange visible = relative_to(seen[r], int64_t{block} * kKeys);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) {
            if (!visible.contains(8 * n + left() + i % 2)) g[n][i] = 0.0f;
          }
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
