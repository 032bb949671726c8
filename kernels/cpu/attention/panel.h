// A panel is a run of kPanelWidth queries of one head, one query per lane. Panels hold matrices
// "dim by query": (D, kPanelWidth). A softmax row then runs down a lane, so its maximum and sum
// need no horizontal operation, and a panel's visible keys follow the mask to within a panel's
// width.
#pragma once

#include "kernels/common/attention_ranges.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/tiles.h"

namespace heddle::kernels::cpu::HEDDLE_ISA {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
static const float kZeroRow[kMaxHeadDim] = {};

HEDDLE_INLINE AttentionMask mask_of(const AttentionProblem& p) {
  return {p.q_len, p.k_len, p.q_pos0, p.k_pos0, p.window_left, p.causal};
}

// Hands out pieces of a workspace, each aligned for vectors.
class Carver {
 public:
  HEDDLE_INLINE explicit Carver(void* base) : next_(static_cast<char*>(base)) {}

  HEDDLE_INLINE float* floats(int64_t n) {
    float* piece = reinterpret_cast<float*>(next_);
    next_ += bytes(n);
    return piece;
  }
  HEDDLE_INLINE static int64_t bytes(int64_t floats) {
    return round_up(floats * 4, kWorkspaceAlign);
  }

 private:
  char* next_;
};

// Visible keys of a panel's queries.
struct alignas(kWorkspaceAlign) PanelMask {
  Range hull;                               // seen by some query; all work stays inside
  Range common;                             // seen by every query: no compare needed inside
  VecI begin[kPanelVecs], end[kPanelVecs];  // per lane, relative to hull.begin

  HEDDLE_INLINE static int64_t bytes() { return static_cast<int64_t>(sizeof(PanelMask)); }

  HEDDLE_INLINE void set(const AttentionMask& mask, Range rows) {
    hull = keys_of_queries(mask, rows);
    common = common_keys_of_queries(mask, rows);
    int32_t lane_begin[kPanelWidth], lane_end[kPanelWidth];
    for (int lane = 0; lane < kPanelWidth; ++lane) {
      // Lanes past the last query repeat it: finite numbers that nobody reads.
      const Range keys = keys_of_query(mask, min_i64(rows.begin + lane, rows.end - 1));
      lane_begin[lane] = static_cast<int32_t>(keys.begin - hull.begin);
      lane_end[lane] = static_cast<int32_t>(keys.end - hull.begin);
    }
    __builtin_memcpy(begin, lane_begin, sizeof(begin));
    __builtin_memcpy(end, lane_end, sizeof(end));
  }

  // All ones in the lanes whose query sees key j.
  HEDDLE_INLINE VecI visible(int64_t j, int v) const {
    const VecI key = splat(static_cast<int32_t>(j - hull.begin));
    return (key >= begin[v]) & (key < end[v]);
  }

  // `keys` cut in three: keys of the middle part are seen by every query of the panel.
  struct Parts {
    Range left, middle, right;
  };
  HEDDLE_INLINE Parts split(Range keys) const {
    const int64_t left_end = clamp_i64(common.begin, keys.begin, keys.end);
    const int64_t right_begin = clamp_i64(common.end, left_end, keys.end);
    return {{keys.begin, left_end}, {left_end, right_begin}, {right_begin, keys.end}};
  }
  HEDDLE_INLINE bool hides_in(Range keys) const {
    return keys.begin < common.begin || keys.end > common.end;
  }
};

// panel[d][lane] = scale * row(lane)[d]; lanes at `rows` and beyond become 0.
inline void pack_panel(const float* base, int64_t token_stride, int64_t rows, int64_t dim,
                       float scale, float* panel) {
  for (int v = 0; v < kPanelVecs; ++v) {
    const float* row[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t i = v * kLanes + lane;
      row[lane] = i < rows ? base + i * token_stride : kZeroRow;
    }
    float* out = panel + v * kLanes;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      Vec x[4];
      HEDDLE_UNROLL
      for (int r = 0; r < 4; ++r) x[r] = load_quarters(row + r, d);
      transpose_quarters(x);
      HEDDLE_UNROLL
      for (int r = 0; r < 4; ++r) store(out + (d + r) * kPanelWidth, x[r] * splat(scale));
    }
    for (; d < dim; ++d) {
      for (int lane = 0; lane < kLanes; ++lane) out[d * kPanelWidth + lane] = row[lane][d] * scale;
    }
  }
}

template <int... G>
HEDDLE_INLINE void store_quarters(Vec x, float* const* row, int64_t d,
                                  std::integer_sequence<int, G...>) {
  (store_quad(row[4 * G] + d, quarter<G>(x)), ...);
}

// row(lane)[d] = scale[lane] * panel[d][lane] for the first `rows` lanes.
inline void unpack_panel(const float* panel, const Vec* scale, int64_t dim, float* base,
                         int64_t token_stride, int64_t rows) {
  float sink[kMaxHeadDim];
  for (int v = 0; v < kPanelVecs; ++v) {
    float* row[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t i = v * kLanes + lane;
      row[lane] = i < rows ? base + i * token_stride : sink;
    }
    const float* in = panel + v * kLanes;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      Vec x[4];
      HEDDLE_UNROLL
      for (int r = 0; r < 4; ++r) x[r] = load(in + (d + r) * kPanelWidth) * scale[v];
      transpose_quarters(x);
      HEDDLE_UNROLL
      for (int r = 0; r < 4; ++r) {
        store_quarters(x[r], row + r, d, std::make_integer_sequence<int, kLanes / 4>{});
      }
    }
    for (; d < dim; ++d) {
      const Vec x = load(in + d * kPanelWidth) * scale[v];
      for (int lane = 0; lane < kLanes; ++lane) row[lane][d] = x[lane];
    }
  }
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
