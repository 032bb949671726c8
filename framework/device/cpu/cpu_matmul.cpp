// Matrix products: of a few rows by a kernel of ours, all others through oneDNN's sgemm, cut into
// one tile per worker by us. On the shapes of a training step one thread per tile is at least as
// fast as oneDNN's own threading and as its matmul primitive; it keeps the order of every sum, and
// needs no primitive cache, no scratch of ours and no operator new inside oneDNN.
#include <dnnl.h>
#ifndef _OPENMP
#include <omp.h>
#endif

#include <algorithm>

#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/cpu/cpu_ops.h"

namespace heddle {
namespace {

// True on a thread that works on one body of run_independent: products stay on it.
thread_local bool t_single = false;

constexpr int64_t kTileStep = 16;               // tile edges are multiples: a cache line of C
constexpr int64_t kDepth = 8192;                // of one call
constexpr int64_t kWorthSplitting = 16 * 1024;  // multiply-adds per worker
constexpr int64_t kThinRows = 16;  // as fast as b comes from memory, without packing it

struct Grid {
  int64_t rows = 1, cols = 1;            // tiles down and across
  int64_t tile_rows = 0, tile_cols = 0;  // of one tile
};

int64_t tile_edge(int64_t length, int64_t tiles) {
  const int64_t edge = (length + tiles - 1) / tiles;
  return (edge + kTileStep - 1) / kTileStep * kTileStep;
}

// At most `workers` tiles; the largest tile as small as can be, then the one with the least packing
// (each tile packs its rows of A and its columns of B).
Grid choose_grid(int64_t m, int64_t n, int64_t k, int64_t workers) {
  Grid best{1, 1, m, n};
  workers = std::min(workers, std::max<int64_t>(1, m * n * k / kWorthSplitting));
  int64_t best_area = m * n, best_edges = m + n;
  for (int64_t down = 1; down <= workers; ++down) {
    Grid g;
    g.tile_rows = tile_edge(m, down);
    g.tile_cols = tile_edge(n, workers / down);
    g.rows = (m + g.tile_rows - 1) / g.tile_rows;
    g.cols = (n + g.tile_cols - 1) / g.tile_cols;
    const int64_t area = std::min(m, g.tile_rows) * std::min(n, g.tile_cols);
    const int64_t edges = std::min(m, g.tile_rows) + std::min(n, g.tile_cols);
    if (area < best_area || (area == best_area && edges < best_edges)) {
      best = g;
      best_area = area;
      best_edges = edges;
    }
  }
  return best;
}

struct Product {
  const float *a, *b;
  float* c;
  int64_t lda, ldb, ldc;
  bool trans_a, trans_b;
  int64_t k;
  float alpha, beta;

  // c[i : i + m, j : j + n]
  void tile(int64_t i, int64_t m, int64_t j, int64_t n) const {
#ifndef _OPENMP
    // The pool is std::thread (thread sanitizer): oneDNN sees no OpenMP region around it.
    omp_set_num_threads(1);
#endif
    const float* rows = trans_a ? a + i : a + i * lda;
    const float* cols = trans_b ? b + j * ldb : b + j;
    // oneDNN copies op(a) as a whole: a great depth is cut, so that the copy stays small.
    const int64_t most = trans_a ? k : kDepth;
    int64_t at = 0;
    do {
      const int64_t depth = std::min(most, k - at);
      const dnnl_status_t status = dnnl_sgemm(
          trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, depth, alpha, rows + at, lda,
          trans_b ? cols + at : cols + at * ldb, ldb, at == 0 ? beta : 1.0f, c + i * ldc + j, ldc);
      HEDDLE_CHECK(status == dnnl_success, "oneDNN sgemm: status " + std::to_string(status));
      at += depth;
    } while (at < k);
  }
};

}  // namespace

void CpuOps::matmul(const Matrix& a, bool trans_a, const Matrix& b, bool trans_b, const Matrix& c,
                    float alpha, float beta) {
  const int64_t m = c.rows, n = c.cols, k = trans_a ? a.rows : a.cols;
  HEDDLE_CHECK((trans_a ? a.cols : a.rows) == m && (trans_b ? b.rows : b.cols) == n &&
                   (trans_b ? b.cols : b.rows) == k,
               "matmul: shapes do not fit");
  HEDDLE_CHECK(a.dtype == DType::kF32 && b.dtype == DType::kF32 && c.dtype == DType::kF32,
               "matmul: the CPU computes in fp32");
  if (m == 0 || n == 0) return;
  if (m <= kThinRows && !trans_a && trans_b) {
    const kernels::ThinProduct thin{a.f32(), a.ld, b.f32(), b.ld, c.f32(), c.ld, m, k, alpha, beta};
    parallel_for(n, row_grain(k),
                 [&](int64_t begin, int64_t end) { table_.thin_matmul(thin, begin, end); });
    return;
  }
  const Product product{a.f32(), b.f32(), c.f32(), a.ld,  b.ld, c.ld,
                        trans_a, trans_b, k,       alpha, beta};
  const int64_t workers = t_single ? 1 : num_threads();
  if (workers == 1) {
    product.tile(0, m, 0, n);
    return;
  }
  const Grid g = choose_grid(m, n, k, workers);
  const int64_t tiles = g.rows * g.cols;
  // A single tile goes through the pool as well: outside of it oneDNN would use its own threads.
  parallel_for(std::max<int64_t>(tiles, 2), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < std::min(end, tiles); ++t) {
      const int64_t i = t / g.cols * g.tile_rows, j = t % g.cols * g.tile_cols;
      product.tile(i, std::min(g.tile_rows, m - i), j, std::min(g.tile_cols, n - j));
    }
  });
}

void CpuOps::run_independent(int64_t n, const std::function<void(int64_t, int)>& body) {
  if (n <= 1 || num_threads() == 1) {
    for (int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  parallel_tasks(n, [&](int64_t i, int worker) {
    t_single = true;
    body(i, worker);
    t_single = false;
  });
}

int CpuOps::workers() const {
  return num_threads();
}

}  // namespace heddle
