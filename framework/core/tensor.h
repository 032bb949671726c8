// Views of memory that somebody else owns. A Matrix is (rows, cols) with a row stride `ld`, which
// lets q, k and v be column slices of one projected buffer.
#pragma once

#include <cstdint>

#include "framework/core/dtype.h"

namespace heddle {

struct Matrix {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;  // elements from one row to the next, >= cols
  DType dtype = DType::kF32;

  float* f32() const { return static_cast<float*>(data); }
  bool empty() const { return data == nullptr; }

  // Columns [begin, begin + count) of every row.
  Matrix columns(int64_t begin, int64_t count) const {
    return {static_cast<char*>(data) + begin * static_cast<int64_t>(dtype_size(dtype)), rows,
            count, ld, dtype};
  }
  // Rows [begin, begin + count).
  Matrix row_range(int64_t begin, int64_t count) const {
    return {static_cast<char*>(data) + begin * ld * static_cast<int64_t>(dtype_size(dtype)), count,
            cols, ld, dtype};
  }
};

inline Matrix matrix(float* data, int64_t rows, int64_t cols) {
  return {data, rows, cols, cols, DType::kF32};
}

}  // namespace heddle
