// FORWARD and DECODE on tensor cores, in the order of FlashAttention-2: a warp owns 16 rows of
// queries, scores and weights stay in its registers, key blocks come from the last to the first.
// The values of a block are on their way while its scores are computed, the keys of the next one
// while its weights are applied.
#pragma once

#include "kernels/cuda/attention/matrix.cuh"

namespace heddle::kernels::cuda {

template <class T, int kDim, int kWarps>
struct ForwardTile {
  static constexpr int kRows = 16 * kWarps;
  static constexpr int kKeys = kDim > 128 ? 32 : 64;  // sums of 256 columns leave no more registers
  static constexpr int kThreads = 32 * kWarps;
  using Queries = Matrix<T, kRows, kDim>;
  using Keys = Matrix<T, kKeys, kDim>;
  static constexpr size_t kBytes = (Queries::kElements + 2 * Keys::kElements) * sizeof(T);
};

// Weights of the calling thread's two rows.
template <int kKeyTiles, int kDimTiles>
struct OnlineSoftmax {
  float top[2] = {-INFINITY, -INFINITY};  // largest score, of the whole row
  float sum[2] = {0.0f, 0.0f};            // of the thread's own columns

  // Scores become weights, 2^(score * factor) relative to the largest one; out follows.
  __device__ void add(float (&scores)[kKeyTiles][4], float (&out)[kDimTiles][4], float factor) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = top[r];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        most = fmaxf(most, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = most == -INFINITY ? 0.0f : most * factor;  // nothing seen, or only NaN
      const float shrink = exp2_fast(top[r] * factor - base);
      top[r] = most;
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        out[n][2 * r] *= shrink;
        out[n][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[n][i] = exp2_fast(scores[n][i] * factor - base);
          sum[r] += scores[n][i];
        }
      }
    }
  }
};

template <class T, int kDim, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) attend_mma(Arguments a) {
  using Tile = ForwardTile<T, kDim, kWarps>;
  auto* memory = reinterpret_cast<T*>(shared_memory());
  const typename Tile::Queries q{memory};
  const typename Tile::Keys k{q.data + q.kElements}, v{k.data + k.kElements};
  constexpr int kKeys = Tile::kKeys, kKeyTiles = kKeys / 8, kDimTiles = kDim / 8;

  const QueryTile tile = QueryTile::of_block(a, Tile::kRows);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const AttentionMask mask = mask_of(a, tile.b);
  const Range tokens = tile.tokens(a, Tile::kRows);
  const Range hull = keys_of_queries(mask, tokens);
  const BlockRange blocks = key_blocks(mask, tokens, kKeys);
  const LocalRange share = as_local(tile.my_share(a, blocks.visit));
  const LocalRange unmasked = as_local(blocks.unmasked);
  Range seen[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + top() + 8 * r;
    seen[r] = tile.holds(a, row) ? keys_of_query(mask, tile.token(a, row)) : Range{};
  }
  // Scores are compared before they are scaled; a negative scale turns their order round.
  const float sign = a.scale < 0.0f ? -1.0f : 1.0f;
  const float factor = a.scale * sign * kLog2E;

  float out[kDimTiles][4];
  clear(out);
  OnlineSoftmax<kKeyTiles, kDimTiles> softmax;
  using Keys = Stream<Tile::kThreads, T, kKeys, kDim>;
  const BlockRows<kKeys> rows(hull);
  const auto stream = [&](const void* data, const TensorStrides& strides) {
    return Keys(row_at<const T>(data, strides, tile.b, 0, tile.kv), strides.token, a.head_dim,
                share.end - 1);
  };
  Keys next_k = stream(a.at.k, a.k), next_v = stream(a.at.v, a.v);
  if (share.begin < share.end) {
    fetch<Tile::kThreads>(q, a.head_dim, a.at.q, [&](int row) -> const T* {
      if (!tile.holds(a, row)) return nullptr;
      return row_at<const T>(a.at.q, a.q, tile.b, tile.token(a, row), tile.head(a, row));
    });
    next_k.fetch(k, rows.of(share.end - 1));
    commit_copies();
  }
  for (int block = share.end - 1; block >= share.begin; --block) {
    wait_copies<0>();
    __syncthreads();  // keys are here, values of the last block are no longer read
    next_v.fetch(v, rows.of(block));
    commit_copies();
    next_v.move(-1);
    float scores[kKeyTiles][4];
    clear(scores);
    multiply_transposed<T>(scores, q, warp_row, k);
    wait_copies<0>();
    __syncthreads();  // values are here, keys are no longer read
    next_k.move(-1);
    if (block > share.begin) next_k.fetch(k, rows.of(block - 1));
    commit_copies();
    if (sign < 0.0f) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = -scores[n][i];
      }
    }
    if (!unmasked.contains(block)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const LocalRange visible = relative_to(seen[r], int64_t{block} * kKeys);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (!visible.contains(8 * n + left() + i)) scores[n][2 * r + i] = -INFINITY;
          }
        }
      }
    }
    softmax.add(scores, out, factor);
    multiply_rounded<T>(out, scores, v);
  }

  float part[2], lse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    part[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
    lse[r] = sum == 0.0f ? -INFINITY : softmax.top[r] * a.scale * sign + logf(sum);
  }
  const int64_t first_of_split = tile.split * (a.batch * a.n_head * a.mask.q_len);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + top() + 8 * r;
    if (!tile.holds(a, row)) continue;
    const int64_t token = tile.token(a, row), head = tile.head(a, row);
    if (a.splits == 1) {
      if (a.at.lse && left() == 0) a.at.lse[lse_at(a, tile.b, head, token)] = lse[r];
      continue;
    }
    const int64_t n = first_of_split + row_number(a, tile.b, head, token);
    if (left() == 0) a.part_lse[n] = lse[r];
    float* to = a.part_out + n * a.head_dim;
#pragma unroll
    for (int t = 0; t < kDimTiles; ++t) {
      if (8 * t >= a.head_dim) break;
      to[8 * t + left()] = out[t][2 * r] * part[r];
      to[8 * t + left() + 1] = out[t][2 * r + 1] * part[r];
    }
  }
  if (a.splits > 1) return;
  store_rows(out, part, q, warp_row, a.head_dim, [&](int row) -> T* {
    if (!tile.holds(a, row)) return nullptr;
    return row_at<T>(a.at.out, a.out, tile.b, tile.token(a, row), tile.head(a, row));
  });
}

}  // namespace heddle::kernels::cuda
