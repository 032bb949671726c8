// Matrix products in fp32, one worker's share: C = alpha op(A) op(B) + beta C.
//
// A register tile of C, R rows by NV vectors, runs down the depth with one broadcast of A for NV
// multiply-adds. B is packed into panels of NV vectors by depth, so that a tile reads it in one
// stream; A is read where it lies when its rows run along the depth, else packed into the tiles'
// order, because columns of a matrix fight for the same places in the caches.
//
//   slab   depths of B that are packed at one time, up to kSlabFloats: third-level cache
//   block  kBlockRows of A and their rows of C: second-level cache
//   depth  kDepth: what a tile sums in registers
//
// An element of C is the sum over its pieces of the depth, each in ascending order. Pieces depend
// on the depth alone: a product cut into ranges of rows and columns has the same bits.
#pragma once

#include <utility>

#include "kernels/cpu/ops/ops_table.h"
#include "kernels/cpu/ops/vec.h"

#define HEDDLE_UNROLL _Pragma("GCC unroll 16")

namespace heddle::kernels::HEDDLE_ISA {
namespace {

// 32 registers hold 8 x 3 sums, 16 hold 6 x 2, beside a row of B and one of A.
constexpr int kTileRows = HEDDLE_LANES == 16 ? 8 : 6;
constexpr int kPanelVecs = HEDDLE_LANES == 16 ? 3 : 2;
constexpr int64_t kPanelWidth = kPanelVecs * kLanes;
constexpr int64_t kDepth = 384;
constexpr int64_t kBlockRows = 96;
constexpr int64_t kAhead = 12;  // rows that are asked for before they are packed
constexpr int64_t kSlabFloats = 512 * 1024;
constexpr int64_t kGemmScratch = kSlabFloats + kBlockRows * kDepth;

HEDDLE_INLINE int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}
HEDDLE_INLINE int64_t pieces_of(int64_t n, int64_t piece) {
  return (n + piece - 1) / piece;
}

// What a tile does with C.
enum class Update { kStore, kAdd, kMix };

// The value as it is, in a register and of unknown origin. Keeps the compiler from loading a row of
// B again for every multiply-add, and from making one of alpha x + beta c in some places only.
HEDDLE_INLINE Vec opaque(Vec x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif HEDDLE_LANES == 16
  Vec8 a = low(x), b = high(x);
  asm("" : "+x"(a), "+x"(b));
  x = join(a, b);
#else
  asm("" : "+x"(x));
#endif
  return x;
}

template <int R, int NV>
struct ProductTile {
  Vec sum[R][NV];

  HEDDLE_INLINE void clear() {
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) {
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) sum[r][v] = Vec{};
    }
  }

  // sum[r] += a[r][k] b[k]; row r of A at a + r * lda. Rows at `left` and beyond repeat the last.
  HEDDLE_INLINE void rows(const float* a, int64_t lda, int64_t left, const float* b,
                          int64_t depth) {
    const float* row[R];
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) row[r] = a + (r < left ? r : left - 1) * lda;
    for (int64_t k = 0; k < depth; ++k, b += NV * kLanes) {
      Vec bk[NV];
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) bk[v] = opaque(load(b + v * kLanes));
      HEDDLE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec ak = splat(row[r][k]);
        HEDDLE_UNROLL
        for (int v = 0; v < NV; ++v) sum[r][v] += ak * bk[v];
      }
    }
  }

  // sum[r] += a[k][r] b[k]; depth k of A at a + k * kTileRows
  HEDDLE_INLINE void columns(const float* a, const float* b, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k, a += kTileRows, b += NV * kLanes) {
      Vec bk[NV];
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) bk[v] = opaque(load(b + v * kLanes));
      HEDDLE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec ak = splat(a[r]);
        HEDDLE_UNROLL
        for (int v = 0; v < NV; ++v) sum[r][v] += ak * bk[v];
      }
    }
  }

  // The first `rows` rows and `cols` columns, which lie in the last vector.
  template <Update kUpdate>
  HEDDLE_INLINE void write(float* c, int64_t ldc, int64_t rows, int64_t cols, float alpha,
                           float beta) const {
    const int64_t last = cols - (NV - 1) * kLanes;
    HEDDLE_UNROLL
    for (int r = 0; r < R; ++r) {
      if (r >= rows) break;
      float* out = c + r * ldc;
      HEDDLE_UNROLL
      for (int v = 0; v < NV - 1; ++v) {
        write_one<kUpdate>(Whole{}, out + v * kLanes, sum[r][v], alpha, beta);
      }
      out += (NV - 1) * kLanes;
      if (last == kLanes) {
        write_one<kUpdate>(Whole{}, out, sum[r][NV - 1], alpha, beta);
      } else {
        write_one<kUpdate>(Part{last}, out, sum[r][NV - 1], alpha, beta);
      }
    }
  }
  template <Update kUpdate, class Io>
  HEDDLE_INLINE static void write_one(Io io, float* out, Vec x, float alpha, float beta) {
    const Vec scaled = opaque(x * alpha);
    if constexpr (kUpdate == Update::kStore) io.store(out, scaled);
    if constexpr (kUpdate == Update::kAdd) io.store(out, io.load(out) + scaled);
    if constexpr (kUpdate == Update::kMix) io.store(out, opaque(io.load(out) * beta) + scaled);
  }
};

// Transposes kLanes x kLanes floats.
template <int S, int... I>
HEDDLE_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
  const Vec low = __builtin_shufflevector(a, b, ((I & S) ? kLanes + I - S : I)...);
  const Vec high = __builtin_shufflevector(a, b, ((I & S) ? kLanes + I : I + S)...);
  a = low;
  b = high;
}
template <int S>
HEDDLE_INLINE void exchange_all(Vec* x) {
  HEDDLE_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    if ((i & S) == 0) exchange<S>(x[i], x[i + S], std::make_integer_sequence<int, kLanes>{});
  }
}
HEDDLE_INLINE void transpose(Vec* x) {
  exchange_all<1>(x);
  exchange_all<2>(x);
#if HEDDLE_LANES >= 8
  exchange_all<4>(x);
#endif
#if HEDDLE_LANES == 16
  exchange_all<8>(x);
#endif
}

// Lines of memory that will be read, asked for a few at a time.
struct Ahead {
  const float* line = nullptr;
  int64_t stride = 0;   // of the rows
  int64_t per_row = 0;  // lines of a row
  int64_t rows = 0;     // rows left, the current one included
  int64_t at = 0;       // line of the current row

  HEDDLE_INLINE void fetch(int64_t lines) {
    for (; rows > 0 && lines > 0; --lines) {
      __builtin_prefetch(line + at * 16, 0, 2);
      if (++at == per_row) {
        at = 0;
        line += stride;
        --rows;
      }
    }
  }
  HEDDLE_INLINE int64_t left() const { return rows * per_row; }
};

// One worker's share of a product on its way through the slabs.
class Product {
 public:
  explicit Product(const Gemm& op)
      : op_(op),
        depth_(pieces_of(op.k, pieces_of(op.k, kDepth))),
        panels_(op.scratch),
        tiles_(op.scratch + kSlabFloats) {}

  void run() {
    // As many pieces of the depth as leave room for eight panels, or all columns.
    const int64_t width = at_most(pieces_of(op_.n, kPanelWidth), 8) * kPanelWidth;
    const int64_t slab_depth = kSlabFloats / (width * depth_) * depth_;
    for (int64_t k = 0; k < op_.k; k += slab_depth) {
      const int64_t depth = at_most(slab_depth, op_.k - k);
      const int64_t step = kSlabFloats / depth / kPanelWidth * kPanelWidth;
      for (int64_t j = 0; j < op_.n; j += step) slab(k, depth, j, at_most(step, op_.n - j));
    }
  }

 private:
  // Panels of one piece of the depth lie behind one another, pieces behind each other.
  void slab(int64_t k, int64_t depth, int64_t j, int64_t cols) {
    float* out = panels_;
    for (int64_t p = 0; p < depth; p += depth_) {
      const int64_t piece = at_most(depth_, depth - p);
      for (int64_t n = 0; n < cols; n += kPanelWidth) {
        const int64_t width = at_most(kPanelWidth, cols - n);
        const int64_t vecs = pieces_of(width, kLanes);
        if (op_.trans_b) {
          pack_b_rows(op_.b + (j + n) * op_.ldb + k + p, width, piece, vecs, out);
        } else {
          pack_b(op_.b + (k + p) * op_.ldb + j + n, width, piece, vecs, out);
        }
        out += piece * vecs * kLanes;
      }
    }
    for (int64_t i = 0; i < op_.m; i += kBlockRows) {
      block(i, at_most(kBlockRows, op_.m - i), k, depth, j, cols);
    }
  }

  // The part of A that follows in the order in which blocks go: the next piece of the depth, or the
  // next rows.
  Ahead next_a(int64_t i, int64_t k, int64_t end) const {
    const int64_t depth = at_most(depth_, op_.k - k);
    if (k >= end || i >= op_.m) return {};
    const int64_t rows = at_most(kBlockRows, op_.m - i);
    if (op_.trans_a) return {op_.a + k * op_.lda + i, op_.lda, pieces_of(rows, 16), depth, 0};
    return {op_.a + i * op_.lda + k, op_.lda, pieces_of(depth, 16), rows, 0};
  }

  void block(int64_t i, int64_t rows, int64_t k, int64_t depth, int64_t j, int64_t cols) const {
    const float* panel = panels_;
    const int64_t turns = pieces_of(cols, kPanelWidth) * pieces_of(rows, kTileRows);
    for (int64_t p = 0; p < depth; p += depth_) {
      const int64_t piece = at_most(depth_, depth - p);
      if (op_.trans_a) pack_a(op_.a + (k + p) * op_.lda + i, rows, piece);
      Ahead a = p + depth_ < depth ? next_a(i, k + p + depth_, k + depth)
                                   : next_a(i + kBlockRows, k, k + depth);
      const int64_t lines = pieces_of(a.left(), turns);
      for (int64_t n = 0; n < cols; n += kPanelWidth) {
        const int64_t width = at_most(kPanelWidth, cols - n);
        const int64_t vecs = pieces_of(width, kLanes);
        const Span span{op_.a + i * op_.lda + k + p,
                        panel,
                        op_.c + i * op_.ldc + j + n,
                        rows,
                        piece,
                        width,
                        lines,
                        k + p == 0};
        switch (vecs) {
          case 1:
            tiles<1>(span, a);
            break;
          case 2:
            tiles<2>(span, a);
            break;
#if HEDDLE_LANES == 16
          case 3:
            tiles<3>(span, a);
            break;
#endif
          default:
            __builtin_unreachable();
        }
        panel += piece * vecs * kLanes;
      }
    }
  }

  // One panel for all tiles of a block.
  struct Span {
    const float *a, *panel;
    float* c;
    int64_t rows, depth, cols;
    int64_t lines;  // of what comes next, to ask for with every tile
    bool first;     // piece of the depth
  };

  template <int NV>
  void tiles(const Span& s, Ahead& next) const {
    const int64_t floats = s.depth * NV * kLanes;
    const int64_t lines = pieces_of(floats / 16, pieces_of(s.rows, kTileRows));
    Ahead panel{s.panel + floats, 0, floats / 16, 1, 0};
    for (int64_t r = 0; r < s.rows; r += kTileRows) {
      panel.fetch(lines);
      next.fetch(s.lines);
      tile<NV>(s, r, at_most(s.rows - r, kTileRows));
    }
  }

  template <int NV>
  HEDDLE_INLINE void tile(const Span& s, int64_t r, int64_t rows) const {
    float* c = s.c + r * op_.ldc;
    for (int64_t e = 0; e < rows; ++e) {
      HEDDLE_UNROLL
      for (int v = 0; v < NV; ++v) __builtin_prefetch(c + e * op_.ldc + v * kLanes, 1, 3);
    }
    ProductTile<kTileRows, NV> tile;
    tile.clear();
    if (op_.trans_a) {
      tile.columns(tiles_ + r * s.depth, s.panel, s.depth);
    } else {
      tile.rows(s.a + r * op_.lda, op_.lda, rows, s.panel, s.depth);
    }
    if (!s.first || op_.beta == 1.0f) {
      tile.template write<Update::kAdd>(c, op_.ldc, rows, s.cols, op_.alpha, 1.0f);
    } else if (op_.beta == 0.0f) {
      tile.template write<Update::kStore>(c, op_.ldc, rows, s.cols, op_.alpha, 0.0f);
    } else {
      tile.template write<Update::kMix>(c, op_.ldc, rows, s.cols, op_.alpha, op_.beta);
    }
  }

  // out[k][lane] = b[k][lane]
  void pack_b(const float* b, int64_t width, int64_t depth, int64_t vecs, float* out) const {
    const int64_t ldb = op_.ldb;
    if (width == kPanelWidth) {
      for (int64_t k = 0; k < depth; ++k, b += ldb, out += kPanelWidth) {
        HEDDLE_UNROLL
        for (int v = 0; v < kPanelVecs; ++v) {
          __builtin_prefetch(b + kAhead * ldb + v * kLanes);
          store(out + v * kLanes, load(b + v * kLanes));
        }
      }
      return;
    }
    for (int64_t k = 0; k < depth; ++k, b += ldb) {
      for (int64_t v = 0; v < vecs; ++v, out += kLanes) {
        const int64_t left = width - v * kLanes;
        store(out, left >= kLanes ? load(b + v * kLanes) : load_partial(b + v * kLanes, left));
      }
    }
  }

  // out[k][lane] = b[lane][k]
  void pack_b_rows(const float* b, int64_t width, int64_t depth, int64_t vecs, float* out) const {
    const int64_t ldb = op_.ldb;
    for (int64_t v = 0; v < vecs; ++v, b += kLanes * ldb, width -= kLanes) {
      for (int64_t k = 0; k < depth; k += kLanes) {
        Vec x[kLanes];
        const int64_t left = depth - k;
        HEDDLE_UNROLL
        for (int lane = 0; lane < kLanes; ++lane) {
          const float* row = b + lane * ldb + k;
          x[lane] = lane >= width ? Vec{} : left >= kLanes ? load(row) : load_partial(row, left);
        }
        transpose(x);
        float* to = out + (k * vecs + v) * kLanes;
        HEDDLE_UNROLL
        for (int e = 0; e < kLanes; ++e) {
          if (e < left) store(to + e * vecs * kLanes, x[e]);
        }
      }
    }
  }

  // Tiles of kTileRows, the last one filled up with zeros: tile[k][row] = a[k][row]. A few tiles at
  // a time, so that whole cache lines are read.
  void pack_a(const float* a, int64_t rows, int64_t depth) const {
    constexpr int64_t kGroup = 4;
    const int64_t lda = op_.lda;
    int64_t r = 0;
    for (; r + kGroup * kTileRows <= rows; r += kGroup * kTileRows) {
      const float* from = a + r;
      float* out = tiles_ + r * depth;
      for (int64_t k = 0; k < depth; ++k, from += lda, out += kTileRows) {
        __builtin_prefetch(from + kAhead * lda);
        __builtin_prefetch(from + kAhead * lda + 16);
        HEDDLE_UNROLL
        for (int64_t t = 0; t < kGroup; ++t) {
          __builtin_memcpy(out + t * kTileRows * depth, from + t * kTileRows,
                           kTileRows * sizeof(float));
        }
      }
    }
    for (; r < rows; r += kTileRows) {
      const int64_t left = at_most(rows - r, kTileRows);
      const float* from = a + r;
      float* out = tiles_ + r * depth;
      for (int64_t k = 0; k < depth; ++k, from += lda, out += kTileRows) {
        for (int64_t e = 0; e < kTileRows; ++e) out[e] = e < left ? from[e] : 0.0f;
      }
    }
  }

  const Gemm& op_;
  const int64_t depth_;  // of a piece
  float* const panels_;
  float* const tiles_;
};

void gemm(const Gemm& op) {
  Product(op).run();
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
