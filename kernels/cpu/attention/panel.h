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
    // The ends of a row's keys rise by one from lane to lane between their limits. Lanes past the
    // last query go on rising: they are finite numbers that nobody reads.
    const int64_t self = mask.q_pos0 + rows.begin - mask.k_pos0;
    set_ramp(begin, self - mask.window_left, mask.window_left < 0 ? 0 : mask.k_len);
    set_ramp(end, mask.causal ? self + 1 : mask.k_len, mask.k_len);
    HEDDLE_UNROLL
    for (int v = 0; v < kPanelVecs; ++v) {
      begin[v] -= splat(static_cast<int32_t>(hull.begin));
      end[v] -= splat(static_cast<int32_t>(hull.begin));
    }
  }

  // lanes[n] = clamp(first + n, 0, limit)
  HEDDLE_INLINE static void set_ramp(VecI* lanes, int64_t first, int64_t limit) {
    const VecI low = splat(0), high = splat(static_cast<int32_t>(limit));
    const auto base = static_cast<int32_t>(clamp_i64(first, -kPanelWidth, limit));
    HEDDLE_UNROLL
    for (int v = 0; v < kPanelVecs; ++v) {
      VecI x = splat(base + v * kLanes) + lane_numbers();
      x = x > low ? x : low;
      lanes[v] = x < high ? x : high;
    }
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
};

// Rows of a matrix with their distance.
struct Rows {
  const float* data;
  int64_t stride;

  HEDDLE_INLINE Rows from(int64_t j) const { return {data + j * stride, stride}; }
};

// Two matrices' rows of the next block, fetched into L2 a row at a time between the tiles of the
// current one: rows are far apart and no hardware prefetcher foresees them.
struct NextRows {
  Rows a, b;
  int64_t left;  // rows not yet asked for, none when negative
  int64_t dim;

  HEDDLE_INLINE void fetch_one() {
    if (left <= 0) return;
    --left;
    for (int64_t d = 0; d < dim; d += 16) {
      __builtin_prefetch(a.data + d, 0, 2);
      __builtin_prefetch(b.data + d, 0, 2);
    }
    a = a.from(1);
    b = b.from(1);
  }
};

// Copies `rows` rows of `dim` floats; each is filled up with zeros to out_stride.
inline void copy_rows(const float* base, int64_t token_stride, int64_t rows, int64_t dim,
                      int64_t out_stride, float* out) {
  for (int64_t i = 0; i < rows; ++i, base += token_stride, out += out_stride) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(out + d, load(base + d));
    for (; d < dim; ++d) out[d] = base[d];
    for (; d < out_stride; ++d) out[d] = 0.0f;
  }
}

// Four queries' worth of d..d+3 in each quarter, transposed: x[e] holds element d + e of all lanes.
HEDDLE_INLINE void load_transposed(const float* base, int64_t token_stride, Vec x[4]) {
  HEDDLE_UNROLL
  for (int r = 0; r < 4; ++r) x[r] = load_quarters(base + r * token_stride, 4 * token_stride);
  transpose_quarters(x);
}

HEDDLE_INLINE void store_transposed(Vec x[4], float* base, int64_t token_stride) {
  transpose_quarters(x);
  HEDDLE_UNROLL
  for (int r = 0; r < 4; ++r) store_quarters(base + r * token_stride, 4 * token_stride, x[r]);
}

// panel[d][lane] = scale * row(lane)[d]; lanes at `rows` and beyond become 0.
inline void pack_panel(const float* base, int64_t token_stride, int64_t rows, int64_t dim,
                       float scale, float* panel) {
  for (int v = 0; v < kPanelVecs; ++v, base += kLanes * token_stride, rows -= kLanes) {
    float* out = panel + v * kLanes;
    int64_t d = 0;
    if (rows >= kLanes) {
      for (; d + 4 <= dim; d += 4) {
        Vec x[4];
        load_transposed(base + d, token_stride, x);
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) store(out + (d + e) * kPanelWidth, x[e] * splat(scale));
      }
    }
    for (; d < dim; ++d) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        out[d * kPanelWidth + lane] = lane < rows ? base[lane * token_stride + d] * scale : 0.0f;
      }
    }
  }
}

// row(lane)[d] = scale[lane] * panel[d][lane] for the first `rows` lanes.
inline void unpack_panel(const float* panel, const Vec* scale, int64_t dim, float* base,
                         int64_t token_stride, int64_t rows) {
  for (int v = 0; v < kPanelVecs; ++v, base += kLanes * token_stride, rows -= kLanes) {
    const float* in = panel + v * kLanes;
    int64_t d = 0;
    if (rows >= kLanes) {
      for (; d + 4 <= dim; d += 4) {
        Vec x[4];
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) x[e] = load(in + (d + e) * kPanelWidth) * scale[v];
        store_transposed(x, base + d, token_stride);
      }
    }
    for (; d < dim; ++d) {
      const Vec x = load(in + d * kPanelWidth) * scale[v];
      for (int64_t lane = 0; lane < kLanes && lane < rows; ++lane) {
        base[lane * token_stride + d] = x[lane];
      }
    }
  }
}

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
