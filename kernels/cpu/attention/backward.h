// Backward: five matrix products per visible (query tile, key block), no q_len * k_len memory.
//
// For a tile of kBackwardRows queries of one head, with p = 2^(scores - lse) and delta = out .
// dout:
//   P^T  = exp2(K Q^T - lse)       dP^T = V dO^T        dS^T = P^T (dP^T - delta)
//   dQ^T += K^T dS^T               dV  += P^T dO        dK  += dS^T Q
// dQ^T stays with the tile; dK and dV run over all tiles and all heads of the group in one fixed
// order, in fp32, in accumulators (keys, padded dim).
//
// A task is (batch row, kv head, chunk of query tiles). With enough (batch row, kv head) pairs
// there is one chunk and the task writes dk and dv itself. With few, the queries are cut into
// chunks of equal numbers of visible pairs, each with accumulators of its own in the shared
// workspace, and a second phase adds those in order. The cut depends on the problem alone, never on
// the number of workers: that is what keeps the bits the same.
#pragma once

#include "kernels/cpu/attention/panel.h"

namespace heddle::kernels::cpu::HEDDLE_ISA {

inline constexpr int64_t kBackwardRows = 64;  // queries of a tile
inline constexpr int64_t kBackwardKeys = 64;  // keys of a block
inline constexpr int64_t kBackwardPanels = kBackwardRows / kPanelWidth;
inline constexpr int64_t kBackwardTasks = 16;  // (pair, chunk) tasks wanted at least
inline constexpr int64_t kMinTilesOfChunk = 4;
inline constexpr int64_t kReduceKeys = 128;  // keys of a task of the second phase

struct BackwardPlan {
  AttentionMask mask;
  int64_t group, dim, padded_dim, pairs, tiles, chunks;

  explicit BackwardPlan(const AttentionProblem& p) : mask(mask_of(p)) {
    group = p.n_head / p.n_kv_head;
    dim = p.head_dim;
    padded_dim = round_up(dim, kLanes);
    pairs = p.batch * p.n_kv_head;
    tiles = ceil_div(p.q_len, kBackwardRows);
    chunks = 1;
    if (pairs > 0 && p.k_len > 0) {
      chunks = clamp_i64(kBackwardTasks / pairs, 1, max_i64(1, tiles / kMinTilesOfChunk));
    }
  }

  Range rows_of_tile(int64_t t) const {
    return {t * kBackwardRows, min_i64((t + 1) * kBackwardRows, mask.q_len)};
  }
  // First tile of chunk c: the first at which c / chunks of the visible pairs lie behind.
  int64_t chunk_begin(int64_t c) const {
    if (c <= 0) return 0;
    if (c >= chunks) return tiles;
    const int64_t wanted = visible_pairs(mask) / chunks * c;
    int64_t low = 0, high = tiles;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const int64_t behind = visible_pairs(mask, min_i64(middle * kBackwardRows, mask.q_len));
      if (behind >= wanted) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // Keys that the chunk's queries see: the extent of its accumulators.
  Range keys_of_chunk(int64_t c) const {
    const int64_t first = chunk_begin(c) * kBackwardRows;
    const int64_t last = min_i64(chunk_begin(c + 1) * kBackwardRows, mask.q_len);
    if (last <= first) return {0, 0};
    const Range keys = keys_of_queries(mask, {first, last});
    return keys.empty() ? Range{0, 0} : keys;
  }
  // Accumulators of dk and dv of a span of keys.
  int64_t sums_bytes(Range keys) const { return 2 * Carver::bytes(keys.size() * padded_dim); }
  int64_t chunk_offset(int64_t c) const {
    int64_t offset = 0;
    for (int64_t i = 0; i < c; ++i) offset += sums_bytes(keys_of_chunk(i));
    return offset;
  }
};

// The tile's own memory.
struct BackwardTile {
  PanelMask* masks;    // (panels)
  float* q_panels;     // (panels, D, width), scaled for base-2 scores
  float* dout_panels;  // (panels, D, width)
  float* dq_panels;    // (panels, D, width), without the scale
  float* q_rows;       // (rows, padded D)
  float* dout_rows;    // (rows, padded D)
  float* lse;          // (rows), natural
  float* delta;        // (rows)
  float* p;            // (keys, rows): P^T
  float* ds;           // (keys, rows): dS^T

  static int64_t bytes(const BackwardPlan& plan) {
    return kBackwardPanels * PanelMask::bytes() + 3 * Carver::bytes(plan.dim * kBackwardRows) +
           2 * Carver::bytes(plan.padded_dim * kBackwardRows) + 2 * Carver::bytes(kBackwardRows) +
           2 * Carver::bytes(kBackwardKeys * kBackwardRows);
  }
  BackwardTile(void* base, const BackwardPlan& plan) {
    masks = static_cast<PanelMask*>(base);
    Carver carve(masks + kBackwardPanels);
    q_panels = carve.floats(plan.dim * kBackwardRows);
    dout_panels = carve.floats(plan.dim * kBackwardRows);
    dq_panels = carve.floats(plan.dim * kBackwardRows);
    q_rows = carve.floats(plan.padded_dim * kBackwardRows);
    dout_rows = carve.floats(plan.padded_dim * kBackwardRows);
    lse = carve.floats(kBackwardRows);
    delta = carve.floats(kBackwardRows);
    p = carve.floats(kBackwardKeys * kBackwardRows);
    ds = carve.floats(kBackwardKeys * kBackwardRows);
  }
};

inline Launch plan_backward(const AttentionProblem& p) {
  const BackwardPlan plan(p);
  Launch launch;
  launch.tasks[0] = plan.pairs * plan.chunks;
  launch.worker_bytes = static_cast<size_t>(BackwardTile::bytes(plan));
  if (plan.chunks == 1) {
    launch.worker_bytes += static_cast<size_t>(plan.sums_bytes(plan.keys_of_chunk(0)));
  } else {
    launch.phases = 2;
    launch.tasks[1] = plan.pairs * ceil_div(p.k_len, kReduceKeys);
    launch.shared_bytes = static_cast<size_t>(plan.pairs * plan.chunk_offset(plan.chunks));
  }
  return launch;
}

// scores[j][lane] = k[j] . q[lane]
inline void scores_of_keys(const float* k, int64_t k_stride, const float* q, int64_t dim,
                           int64_t keys, float* scores) {
  for_row_tiles(
      keys, [&]<int R>(int64_t j) __attribute__((always_inline)) {
        Tile<R, kPanelVecs> tile;
        tile.clear();
        tile.rows_x_panel(k + j * k_stride, k_stride, q, kPanelWidth, dim);
        tile.store_to(scores + j * kBackwardRows, kBackwardRows);
      });
}

// scores -> 2^(score - lse * log2 e) for `keys`, 0 where hidden; row 0 of p is key `first`. A loop
// of its own, because the polynomial's constants would take the registers of the tile's sums.
template <bool kMasked>
inline void probabilities(const PanelMask& mask, Range keys, int64_t first, const float* lse,
                          float* p) {
  Vec base[kPanelVecs];
  HEDDLE_UNROLL
  for (int v = 0; v < kPanelVecs; ++v) base[v] = load(lse + v * kLanes) * splat(kLog2E);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    float* row = p + (j - first) * kBackwardRows;
    HEDDLE_UNROLL
    for (int v = 0; v < kPanelVecs; ++v) {
      Vec x = exp2(load(row + v * kLanes) - base[v]);
      if constexpr (kMasked) x = select(mask.visible(j, v), x, Vec{});
      store(row + v * kLanes, x);
    }
  }
}

// dS^T of one panel and block: ds[j][lane] = p[j][lane] (v[j] . dout[lane] - delta[lane]).
inline void score_gradients(const float* values, int64_t v_stride, const float* dout, int64_t dim,
                            int64_t keys, const float* delta, const float* p, float* ds) {
  for_row_tiles(
      keys, [&]<int R>(int64_t j) __attribute__((always_inline)) {
        Tile<R, kPanelVecs> tile;
        tile.clear();
        tile.rows_x_panel(values + j * v_stride, v_stride, dout, kPanelWidth, dim);
        HEDDLE_UNROLL
        for (int r = 0; r < R; ++r) {
          HEDDLE_UNROLL
          for (int v = 0; v < kPanelVecs; ++v) {
            const int64_t at = (j + r) * kBackwardRows + v * kLanes;
            store(ds + at, load(p + at) * (tile.sum[r][v] - load(delta + v * kLanes)));
          }
        }
      });
}

// dq[d][lane] += sum_j k[j][d] ds[j][lane]
inline void accumulate_dq(const float* k, int64_t k_stride, const float* ds, int64_t keys,
                          int64_t dim, float* dq) {
  for_row_tiles(
      dim, [&]<int R>(int64_t d) __attribute__((always_inline)) {
        Tile<R, kPanelVecs> tile;
        tile.load_from(dq + d * kPanelWidth, kPanelWidth);
        tile.columns_x_panel(k + d, k_stride, ds, kBackwardRows, keys);
        tile.store_to(dq + d * kPanelWidth, kPanelWidth);
      });
}

// sums[j][d] += sum_i weights[j][i] rows[i][d] for the queries i of [first, last) that see one of
// the keys of each register tile. `queries` gives that range for keys [j, j + R) of the block.
template <class Queries>
inline void accumulate_keys(const float* weights, const float* rows, int64_t padded_dim,
                            int64_t keys, const Queries& queries, float* sums) {
  const auto strip = [&]<int NV>(int64_t d) __attribute__((always_inline)) {
    for_row_tiles(
        keys, [&]<int R>(int64_t j) __attribute__((always_inline)) {
          const Range seen = queries(j, R);
          if (seen.empty()) return;
          Tile<R, NV> tile;
          tile.load_from(sums + j * padded_dim + d, padded_dim);
          tile.rows_x_panel(weights + j * kBackwardRows + seen.begin, kBackwardRows,
                            rows + seen.begin * padded_dim + d, padded_dim, seen.size());
          tile.store_to(sums + j * padded_dim + d, padded_dim);
        });
  };
  int64_t d = 0;
  for (; d + kPanelWidth <= padded_dim; d += kPanelWidth) strip.template operator()<kPanelVecs>(d);
  if (d < padded_dim) strip.template operator()<1>(d);
}

// dots[lane] = sum_d a[d][lane] b[d][lane], in the order in which score_gradients sums dP: where a
// query sees one key only, its dS is then exactly 0.
HEDDLE_INLINE void panel_dots(const float* a, const float* b, int64_t dim, float* dots) {
  Vec sum[kPanelVecs] = {};
  for (int64_t at = 0; at < dim * kPanelWidth; at += kPanelWidth) {
    HEDDLE_UNROLL
    for (int v = 0; v < kPanelVecs; ++v) {
      sum[v] += load(a + at + v * kLanes) * load(b + at + v * kLanes);
    }
  }
  HEDDLE_UNROLL
  for (int v = 0; v < kPanelVecs; ++v) store(dots + v * kLanes, sum[v]);
}

class BackwardTask {
 public:
  BackwardTask(const AttentionProblem& p, const BackwardArgs& args, const TaskContext& context)
      : p_(p), args_(args), plan_(p), tile_(context.worker, plan_) {
    chunk_ = context.task / plan_.pairs;
    const int64_t pair = context.task % plan_.pairs;
    batch_ = pair / p.n_kv_head;
    kv_head_ = pair % p.n_kv_head;
    keys_ = plan_.keys_of_chunk(chunk_);
    char* sums = static_cast<char*>(context.worker) + BackwardTile::bytes(plan_);
    if (plan_.chunks > 1) {
      sums = static_cast<char*>(context.shared) + pair * plan_.chunk_offset(plan_.chunks) +
             plan_.chunk_offset(chunk_);
    }
    Carver carve(sums);
    dk_ = carve.floats(keys_.size() * plan_.padded_dim);
    dv_ = carve.floats(keys_.size() * plan_.padded_dim);
  }

  void run() {
    for (int64_t i = 0; i < keys_.size() * plan_.padded_dim; i += kLanes) {
      store(dk_ + i, Vec{});
      store(dv_ + i, Vec{});
    }
    const int64_t end = plan_.chunk_begin(chunk_ + 1);
    for (int64_t t = plan_.chunk_begin(chunk_); t < end; ++t) {
      rows_ = plan_.rows_of_tile(t);
      for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) {
        tile_.masks[n].set(plan_.mask, panel_rows(n));
      }
      for (int64_t g = 0; g < plan_.group; ++g) run_tile(g);
    }
    if (plan_.chunks == 1) write_sums();
  }

 private:
  Range panel_rows(int64_t n) const {
    const int64_t begin = rows_.begin + n * kPanelWidth;
    return {begin, min_i64(begin + kPanelWidth, rows_.end)};
  }
  int64_t key_row(const TensorStrides& s, int64_t j) const {
    return batch_ * s.batch + j * s.token + kv_head_ * s.head;
  }
  int64_t query_row(const TensorStrides& s, int64_t i, int64_t g) const {
    return batch_ * s.batch + i * s.token + (kv_head_ * plan_.group + g) * s.head;
  }

  void run_tile(int64_t g) const {
    load_tile(g);
    const Range keys = keys_of_queries(plan_.mask, rows_);
    for (int64_t j = keys.begin; j < keys.end; j += kBackwardKeys) {
      const Range block{j, min_i64(j + kBackwardKeys, keys.end)};
      for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) panel_block(n, block);
      key_block(block);
    }
    Vec scale[kPanelVecs];
    for (int v = 0; v < kPanelVecs; ++v) scale[v] = splat(p_.scale);
    for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) {
      const Range rows = panel_rows(n);
      unpack_panel(tile_.dq_panels + n * kPanelWidth * plan_.dim, scale, plan_.dim,
                   args_.dq + query_row(p_.dq, rows.begin, g), p_.dq.token, rows.size());
    }
  }

  void load_tile(int64_t g) const {
    const float* q = args_.q + query_row(p_.q, rows_.begin, g);
    const float* dout = args_.dout + query_row(p_.dout, rows_.begin, g);
    const float* out = args_.out + query_row(p_.out, rows_.begin, g);
    const float* lse = args_.lse + batch_ * p_.lse_stride_batch +
                       (kv_head_ * plan_.group + g) * p_.lse_stride_head + rows_.begin;
    for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) {
      const Range rows = panel_rows(n);
      const int64_t first = n * kPanelWidth, at = first * plan_.dim;
      pack_panel(q + first * p_.q.token, p_.q.token, rows.size(), plan_.dim, p_.scale * kLog2E,
                 tile_.q_panels + at);
      pack_panel(dout + first * p_.dout.token, p_.dout.token, rows.size(), plan_.dim, 1.0f,
                 tile_.dout_panels + at);
      float* dq_panel = tile_.dq_panels + at;
      pack_panel(out + first * p_.out.token, p_.out.token, rows.size(), plan_.dim, 1.0f, dq_panel);
      panel_dots(dq_panel, tile_.dout_panels + at, plan_.dim, tile_.delta + first);
      for (int64_t i = 0; i < plan_.dim * kPanelWidth; i += kLanes) store(dq_panel + i, Vec{});
      for (int64_t lane = 0; lane < kPanelWidth; ++lane) {
        const float x = lane < rows.size() ? lse[first + lane] : 0.0f;
        // Rows that see nothing have lse -inf; all their pairs are hidden, any finite number does.
        tile_.lse[first + lane] = x == -__builtin_inff() ? 0.0f : x;
      }
    }
    copy_rows(q, p_.q.token, rows_.size(), plan_.dim, plan_.padded_dim, tile_.q_rows);
    copy_rows(dout, p_.dout.token, rows_.size(), plan_.dim, plan_.padded_dim, tile_.dout_rows);
  }

  // P^T, dS^T and dQ^T of panel n; rows of keys that the panel does not see are set to 0.
  void panel_block(int64_t n, Range block) const {
    const PanelMask& mask = tile_.masks[n];
    const int64_t first = n * kPanelWidth;
    float* p = tile_.p + first;
    float* ds = tile_.ds + first;
    Range seen = intersect(block, mask.hull);
    if (seen.empty()) seen = {block.begin, block.begin};
    clear_rows(p, ds, {0, seen.begin - block.begin});
    clear_rows(p, ds, {seen.end - block.begin, block.size()});
    if (seen.empty()) return;
    p += (seen.begin - block.begin) * kBackwardRows;
    ds += (seen.begin - block.begin) * kBackwardRows;
    const float* k = args_.k + key_row(p_.k, seen.begin);
    const float* v = args_.v + key_row(p_.v, seen.begin);
    const float* lse = tile_.lse + first;
    scores_of_keys(k, p_.k.token, tile_.q_panels + first * plan_.dim, plan_.dim, seen.size(), p);
    const PanelMask::Parts parts = mask.split(seen);
    probabilities<true>(mask, parts.left, seen.begin, lse, p);
    probabilities<false>(mask, parts.middle, seen.begin, lse, p);
    probabilities<true>(mask, parts.right, seen.begin, lse, p);
    score_gradients(v, p_.v.token, tile_.dout_panels + first * plan_.dim, plan_.dim, seen.size(),
                    tile_.delta + first, p, ds);
    accumulate_dq(k, p_.k.token, ds, seen.size(), plan_.dim, tile_.dq_panels + first * plan_.dim);
  }

  static void clear_rows(float* p, float* ds, Range rows) {
    for (int64_t j = rows.begin; j < rows.end; ++j) {
      HEDDLE_UNROLL
      for (int v = 0; v < kPanelVecs; ++v) {
        store(p + j * kBackwardRows + v * kLanes, Vec{});
        store(ds + j * kBackwardRows + v * kLanes, Vec{});
      }
    }
  }

  // dV and dK of a block of keys from all panels of the tile.
  void key_block(Range block) const {
    const auto queries = [&](int64_t j, int64_t n) __attribute__((always_inline)) {
      const Range seen =
          intersect(queries_of_keys(plan_.mask, {block.begin + j, block.begin + j + n}), rows_);
      return Range{seen.begin - rows_.begin, seen.end - rows_.begin};
    };
    const int64_t at = (block.begin - keys_.begin) * plan_.padded_dim;
    accumulate_keys(tile_.p, tile_.dout_rows, plan_.padded_dim, block.size(), queries, dv_ + at);
    accumulate_keys(tile_.ds, tile_.q_rows, plan_.padded_dim, block.size(), queries, dk_ + at);
  }

  void write_sums() const {
    for (int64_t j = 0; j < p_.k_len; ++j) {
      const bool seen = keys_.contains(j);
      const int64_t at = seen ? (j - keys_.begin) * plan_.padded_dim : 0;
      write_row(seen ? dk_ + at : kZeroRow, p_.scale, plan_.dim, args_.dk + key_row(p_.dk, j));
      write_row(seen ? dv_ + at : kZeroRow, 1.0f, plan_.dim, args_.dv + key_row(p_.dv, j));
    }
  }

 public:
  static void write_row(const float* sums, float scale, int64_t dim, float* out) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(out + d, load(sums + d) * splat(scale));
    for (; d < dim; ++d) out[d] = sums[d] * scale;
  }

 private:
  const AttentionProblem& p_;
  const BackwardArgs& args_;
  const BackwardPlan plan_;
  const BackwardTile tile_;
  int64_t chunk_, batch_, kv_head_;
  Range keys_;    // extent of dk_ and dv_
  float* dk_;     // (keys, padded D), without the scale
  float* dv_;     // (keys, padded D)
  Range rows_{};  // queries of the current tile
};

// Second phase: adds the chunks' sums, in the order of the chunks.
inline void add_chunks(const AttentionProblem& p, const BackwardArgs& args,
                       const TaskContext& context) {
  const BackwardPlan plan(p);
  const int64_t blocks = ceil_div(p.k_len, kReduceKeys);
  const int64_t pair = context.task / blocks, block = context.task % blocks;
  const int64_t b = pair / p.n_kv_head, kv = pair % p.n_kv_head;
  const char* sums =
      static_cast<const char*>(context.shared) + pair * plan.chunk_offset(plan.chunks);
  Range span[kBackwardTasks];
  const float* dk[kBackwardTasks];
  for (int64_t c = 0; c < plan.chunks; ++c) {
    span[c] = plan.keys_of_chunk(c);
    dk[c] = reinterpret_cast<const float*>(sums);
    sums += plan.sums_bytes(span[c]);
  }
  const int64_t end = min_i64((block + 1) * kReduceKeys, p.k_len);
  for (int64_t j = block * kReduceKeys; j < end; ++j) {
    alignas(kWorkspaceAlign) float dk_sum[kMaxHeadDim] = {}, dv_sum[kMaxHeadDim] = {};
    for (int64_t c = 0; c < plan.chunks; ++c) {
      if (!span[c].contains(j)) continue;
      const float* dk_row = dk[c] + (j - span[c].begin) * plan.padded_dim;
      const float* dv_row = dk_row + Carver::bytes(span[c].size() * plan.padded_dim) / 4;
      for (int64_t d = 0; d < plan.padded_dim; d += kLanes) {
        store(dk_sum + d, load(dk_sum + d) + load(dk_row + d));
        store(dv_sum + d, load(dv_sum + d) + load(dv_row + d));
      }
    }
    const int64_t dk_at = b * p.dk.batch + j * p.dk.token + kv * p.dk.head;
    const int64_t dv_at = b * p.dv.batch + j * p.dv.token + kv * p.dv.head;
    BackwardTask::write_row(dk_sum, p.scale, plan.dim, args.dk + dk_at);
    BackwardTask::write_row(dv_sum, 1.0f, plan.dim, args.dv + dv_at);
  }
}

inline void run_backward(const AttentionProblem& p, const BackwardArgs& args,
                         const TaskContext& context) {
  if (context.phase == 0) {
    BackwardTask(p, args, context).run();
  } else {
    add_chunks(p, args, context);
  }
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
