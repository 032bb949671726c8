// Logits, softcap and cross-entropy, a chunk of rows at a time.
#include <algorithm>

#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/cpu/cpu_ops.h"

namespace heddle {
namespace {

// The scratch with rows that do not all start at the same place in the caches: a row stride of a
// multiple of a page makes the products over its columns a quarter slower.
Matrix spread_rows(const Matrix& scratch) {
  constexpr int64_t kPage = 1024, kShift = 16;
  if (scratch.ld % kPage != 0) return scratch;
  const int64_t ld = scratch.ld + kShift;
  const int64_t rows = scratch.rows * scratch.ld / ld;
  return rows == 0 ? scratch : Matrix{scratch.data, rows, scratch.cols, ld, scratch.dtype};
}

}  // namespace

void CpuOps::head_logits(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                         const Matrix& logits) {
  const Matrix z{logits.data, h.rows, vocab, logits.ld, logits.dtype};
  matmul(h, false, w.row_range(0, vocab), true, z, 1.0f, 0.0f);
  if (softcap == 0) return;
  parallel_for(z.rows, row_grain(vocab), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) table_.softcap(z.f32() + n * z.ld, softcap, vocab);
  });
}

void CpuOps::head_loss(const Matrix& h, const Matrix& w, int64_t vocab, float softcap,
                       const int32_t* targets, const Matrix& scratch, float* loss, int32_t* argmax,
                       const Matrix* dh, const Matrix* dw) {
  HEDDLE_CHECK(scratch.rows > 0 && scratch.ld >= vocab && w.rows >= vocab,
               "head_loss: the scratch has no room for a row of logits");
  for (int64_t i = 0; i < h.rows; ++i) {
    if (targets[i] >= 0) check_ids("target", targets + i, 1, 0, vocab);
  }
  const Matrix room = spread_rows(scratch);
  const Matrix weights = w.row_range(0, vocab);
  // Chunks of about the same size: a short last one would waste a pass over the weights.
  const int64_t chunks = (h.rows + room.rows - 1) / room.rows;
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t first = h.rows * c / chunks, count = h.rows * (c + 1) / chunks - first;
    const Matrix rows = h.row_range(first, count);
    const Matrix z{room.data, count, vocab, room.ld, DType::kF32};
    matmul(rows, false, weights, true, z, 1.0f, 0.0f);
    const kernels::LossRows op{
        z.f32(),         z.ld,          vocab,        softcap,
        targets + first, dh != nullptr, loss + first, argmax == nullptr ? nullptr : argmax + first};
    parallel_for(count, row_grain(vocab),
                 [&](int64_t begin, int64_t end) { table_.loss_rows(op, begin, end); });
    if (dh == nullptr) continue;
    matmul(z, false, weights, false, dh->row_range(first, count), 1.0f, 0.0f);
    matmul(z, true, rows, false, dw->row_range(0, vocab), 1.0f, 1.0f);
  }
}

}  // namespace heddle
