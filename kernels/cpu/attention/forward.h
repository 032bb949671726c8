// Forward: out = softmax(scale q k^T) v, one pass over the visible keys with a running maximum.
//
// A task is (batch row, kv head, tile of tokens) for all query heads of the group, so a group's
// heads share each block of keys and values while it is in cache. K and V keep their layout: blocks
// are at most copied together. Only q is transposed, into panels, and scaled by scale * log2 e, so
// that scores are base 2.
#pragma once

#include "kernels/cpu/attention/panel.h"

namespace heddle::kernels::cpu::HEDDLE_ISA {

inline constexpr int64_t kForwardRows = 256;  // (token, head) rows of a task, roughly
inline constexpr int64_t kForwardKeys = 128;  // keys per block
inline constexpr int64_t kForwardTasks = 16;  // wanted at least, at the price of smaller tiles

struct ForwardPlan {
  int64_t group;   // query heads per kv head
  int64_t panels;  // panels of one head per tile
  int64_t tiles;   // tiles of tokens

  HEDDLE_INLINE explicit ForwardPlan(const AttentionProblem& p) {
    group = p.n_head / p.n_kv_head;
    panels = max_i64(1, kForwardRows / (group * kPanelWidth));
    tiles = ceil_div(p.q_len, tile_rows());
    while (panels > 1 && tiles * p.batch * p.n_kv_head < kForwardTasks) {
      panels = ceil_div(panels, 2);
      tiles = ceil_div(p.q_len, tile_rows());
    }
  }
  HEDDLE_INLINE int64_t tile_rows() const { return panels * kPanelWidth; }
};

// Running state of one panel.
struct ForwardPanel {
  float* q;    // (D, width), scaled
  float* out;  // (D, width), not yet divided by the sum
  float* top;  // (width) running maximum, base 2
  float* sum;  // (width) running sum of 2^(score - top)

  HEDDLE_INLINE static int64_t bytes(int64_t dim) {
    return 2 * Carver::bytes(dim * kPanelWidth) + 2 * Carver::bytes(kPanelWidth);
  }
  HEDDLE_INLINE ForwardPanel(void* base, int64_t dim) {
    Carver carve(base);
    q = carve.floats(dim * kPanelWidth);
    out = carve.floats(dim * kPanelWidth);
    top = carve.floats(kPanelWidth);
    sum = carve.floats(kPanelWidth);
  }
};

inline Launch plan_forward(const AttentionProblem& p) {
  const ForwardPlan plan(p);
  Launch launch;
  launch.tasks[0] = p.batch * p.n_kv_head * plan.tiles;
  launch.worker_bytes = static_cast<size_t>(
      plan.panels * PanelMask::bytes() +
      plan.group * plan.panels * ForwardPanel::bytes(p.head_dim) +
      2 * Carver::bytes(kForwardKeys * p.head_dim) + Carver::bytes(kForwardKeys * kPanelWidth));
  return launch;
}

// scores[j][lane] = k[j] . q[lane] for `keys`, -inf where hidden, and the largest of each lane. Row
// 0 of k and of scores is key `first`.
template <bool kMasked>
inline void score_keys(const PanelMask& mask, Range keys, int64_t first, const float* k,
                       int64_t k_stride, const float* q, int64_t dim, float* scores, Vec* top,
                       NextRows& next) {
  const int64_t offset = keys.begin - first;
  for_row_tiles(
      keys.size(), [&]<int R>(int64_t n) __attribute__((always_inline)) {
        const int64_t j = offset + n;
        next.fetch_one();
        Tile<R, kPanelVecs> tile;
        tile.clear();
        tile.rows_x_panel(k + j * k_stride, k_stride, q, kPanelWidth, dim);
        HEDDLE_UNROLL
        for (int r = 0; r < R; ++r) {
          HEDDLE_UNROLL
          for (int v = 0; v < kPanelVecs; ++v) {
            Vec x = tile.sum[r][v];
            if constexpr (kMasked) {
              x = select(mask.visible(first + j + r, v), x, splat(-__builtin_inff()));
            }
            store(scores + (j + r) * kPanelWidth + v * kLanes, x);
            top[v] = max(x, top[v]);
          }
        }
      });
}

// scores -> 2^(score - top), and the panel's new state. Hidden scores become exactly 0. Returns in
// `shrink` what the panel's earlier output has to be multiplied with.
inline void softmax_block(int64_t keys, const Vec* block_top, float* scores,
                          const ForwardPanel& panel, Vec* shrink) {
  Vec top[kPanelVecs], sum[kPanelVecs];
  HEDDLE_UNROLL
  for (int v = 0; v < kPanelVecs; ++v) {
    const Vec old_top = load(panel.top + v * kLanes);
    const Vec new_top = max(block_top[v], old_top);
    store(panel.top + v * kLanes, new_top);
    // A lane that has seen nothing yet has top -inf: measure from 0, all its p become 0 anyway.
    top[v] = select(new_top == splat(-__builtin_inff()), Vec{}, new_top);
    shrink[v] = exp2(old_top - top[v]);
    sum[v] = load(panel.sum + v * kLanes) * shrink[v];
  }
  for (float* row = scores; row < scores + keys * kPanelWidth; row += kPanelWidth) {
    HEDDLE_UNROLL
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec p = exp2(load(row + v * kLanes) - top[v]);
      store(row + v * kLanes, p);
      sum[v] += p;
    }
  }
  HEDDLE_UNROLL
  for (int v = 0; v < kPanelVecs; ++v) store(panel.sum + v * kLanes, sum[v]);
}

// out[d][lane] = shrink * out[d][lane] + sum_j v[j][d] p[j][lane]
inline void accumulate_out(const float* values, int64_t v_stride, const float* p, int64_t keys,
                           int64_t dim, const Vec* shrink, float* out) {
  for_row_tiles(
      dim, [&]<int R>(int64_t d) __attribute__((always_inline)) {
        Tile<R, kPanelVecs> tile;
        tile.load_scaled(out + d * kPanelWidth, kPanelWidth, shrink);
        tile.columns_x_panel(values + d, v_stride, p, kPanelWidth, keys);
        tile.store_to(out + d * kPanelWidth, kPanelWidth);
      });
}

class ForwardTask {
 public:
  ForwardTask(const AttentionProblem& p, const ForwardArgs& args, const TaskContext& context)
      : p_(p), args_(args), plan_(p) {
    const int64_t pairs = p.batch * p.n_kv_head;
    const int64_t tile = plan_.tiles - 1 - context.task / pairs;  // late tiles see most keys
    batch_ = context.task % pairs / p.n_kv_head;
    kv_head_ = context.task % pairs % p.n_kv_head;
    rows_ = {tile * plan_.tile_rows(), min_i64((tile + 1) * plan_.tile_rows(), p.q_len)};
    masks_ = static_cast<PanelMask*>(context.worker);
    panel_bytes_ = ForwardPanel::bytes(p.head_dim);
    panels_ = static_cast<char*>(context.worker) + plan_.panels * PanelMask::bytes();
    Carver carve(panels_ + plan_.group * plan_.panels * panel_bytes_);
    k_block_ = carve.floats(kForwardKeys * p.head_dim);
    v_block_ = carve.floats(kForwardKeys * p.head_dim);
    scores_ = carve.floats(kForwardKeys * kPanelWidth);
  }

  void run() {
    const AttentionMask mask = mask_of(p_);
    for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) {
      masks_[n].set(mask, panel_rows(n));
      begin_panels(n);
    }
    const Range keys = keys_of_queries(mask, rows_);
    for (int64_t j = keys.begin; j < keys.end; j += kForwardKeys) {
      attend_block({j, min_i64(j + kForwardKeys, keys.end)}, keys.end);
    }
    for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) end_panels(n);
  }

 private:
  Range panel_rows(int64_t n) const {
    const int64_t begin = rows_.begin + n * kPanelWidth;
    return {begin, min_i64(begin + kPanelWidth, rows_.end)};
  }
  ForwardPanel panel(int64_t n, int64_t g) const {
    return ForwardPanel(panels_ + (n * plan_.group + g) * panel_bytes_, p_.head_dim);
  }
  Rows rows(const float* base, const TensorStrides& s, int64_t j) const {
    return {base + batch_ * s.batch + j * s.token + kv_head_ * s.head, s.token};
  }
  // The rows of a block, where the caller has them if they are dense, else copied together: one
  // copy serves all panels and heads of the task, and rows a power of two apart would fight for the
  // same places in the caches.
  Rows stage(const float* base, const TensorStrides& s, Range block, float* copy) const {
    const Rows from = rows(base, s, block.begin);
    if (from.stride == p_.head_dim) return from;
    copy_rows(from.data, from.stride, block.size(), p_.head_dim, p_.head_dim, copy);
    return {copy, p_.head_dim};
  }
  // Offset of token i of the group's head g.
  int64_t query_row(const TensorStrides& s, int64_t i, int64_t g) const {
    return batch_ * s.batch + i * s.token + (kv_head_ * plan_.group + g) * s.head;
  }

  void attend_block(Range block, int64_t keys_end) const {
    const Rows k = stage(args_.k, p_.k, block, k_block_);
    const Rows v = stage(args_.v, p_.v, block, v_block_);
    NextRows next{rows(args_.k, p_.k, block.end), rows(args_.v, p_.v, block.end),
                  min_i64(kForwardKeys, keys_end - block.end), p_.head_dim};
    for (int64_t n = 0; n * kPanelWidth < rows_.size(); ++n) {
      const Range seen = intersect(block, masks_[n].hull);
      if (seen.empty()) continue;
      const int64_t offset = seen.begin - block.begin;
      for (int64_t g = 0; g < plan_.group; ++g) {
        attend(masks_[n], seen, k.from(offset), v.from(offset), panel(n, g), next);
      }
    }
  }

  void begin_panels(int64_t n) const {
    const Range rows = panel_rows(n);
    for (int64_t g = 0; g < plan_.group; ++g) {
      const ForwardPanel state = panel(n, g);
      pack_panel(args_.q + query_row(p_.q, rows.begin, g), p_.q.token, rows.size(), p_.head_dim,
                 p_.scale * kLog2E, state.q);
      for (int64_t i = 0; i < p_.head_dim * kPanelWidth; i += kLanes) store(state.out + i, Vec{});
      for (int64_t i = 0; i < kPanelWidth; i += kLanes) {
        store(state.top + i, splat(-__builtin_inff()));
        store(state.sum + i, Vec{});
      }
    }
  }

  void attend(const PanelMask& mask, Range keys, Rows k, Rows v, const ForwardPanel& state,
              NextRows& next) const {
    Vec top[kPanelVecs], shrink[kPanelVecs];
    HEDDLE_UNROLL
    for (int n = 0; n < kPanelVecs; ++n) top[n] = splat(-__builtin_inff());
    const int64_t dim = p_.head_dim;
    const PanelMask::Parts parts = mask.split(keys);
    score_keys<true>(mask, parts.left, keys.begin, k.data, k.stride, state.q, dim, scores_, top,
                     next);
    score_keys<false>(mask, parts.middle, keys.begin, k.data, k.stride, state.q, dim, scores_, top,
                      next);
    score_keys<true>(mask, parts.right, keys.begin, k.data, k.stride, state.q, dim, scores_, top,
                     next);
    softmax_block(keys.size(), top, scores_, state, shrink);
    accumulate_out(v.data, v.stride, scores_, keys.size(), dim, shrink, state.out);
  }

  void end_panels(int64_t n) const {
    const Range rows = panel_rows(n);
    for (int64_t g = 0; g < plan_.group; ++g) {
      const ForwardPanel state = panel(n, g);
      Vec inverse[kPanelVecs];
      for (int v = 0; v < kPanelVecs; ++v) {
        const Vec sum = load(state.sum + v * kLanes);
        inverse[v] = select(sum == Vec{}, Vec{}, splat(1.0f) / sum);
      }
      unpack_panel(state.out, inverse, p_.head_dim, args_.out + query_row(p_.out, rows.begin, g),
                   p_.out.token, rows.size());
      if (args_.lse) write_lse(state, rows, g);
    }
  }

  void write_lse(const ForwardPanel& state, Range rows, int64_t g) const {
    float* lse = args_.lse + batch_ * p_.lse_stride_batch +
                 (kv_head_ * plan_.group + g) * p_.lse_stride_head + rows.begin;
    for (int64_t i = 0; i < rows.size(); ++i) {
      lse[i] = state.sum[i] == 0.0f ? -__builtin_inff()
                                    : state.top[i] * kLn2 + __builtin_logf(state.sum[i]);
    }
  }

  const AttentionProblem& p_;
  const ForwardArgs& args_;
  const ForwardPlan plan_;
  PanelMask* masks_;  // one per panel of the tile
  char* panels_;      // ForwardPanel (panel, head of the group)
  int64_t panel_bytes_;
  float* k_block_;  // (kForwardKeys, D)
  float* v_block_;  // (kForwardKeys, D)
  float* scores_;   // (kForwardKeys, width)
  int64_t batch_, kv_head_;
  Range rows_;
};

inline void run_forward(const AttentionProblem& p, const ForwardArgs& args,
                        const TaskContext& context) {
  ForwardTask(p, args, context).run();
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
