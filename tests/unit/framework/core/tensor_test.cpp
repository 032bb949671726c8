#include "framework/core/tensor.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(DType, SizesAndNames) {
  const struct {
    DType type;
    size_t size;
    std::string_view name;
  } all[] = {{DType::kF32, 4, "F32"}, {DType::kF16, 2, "F16"}, {DType::kBF16, 2, "BF16"},
             {DType::kF64, 8, "F64"}, {DType::kI32, 4, "I32"}, {DType::kI64, 8, "I64"},
             {DType::kU8, 1, "U8"}};
  for (const auto& t : all) {
    EXPECT_EQ(dtype_size(t.type), t.size);
    EXPECT_EQ(dtype_name(t.type), t.name);
  }
}

TEST(Matrix, ViewsShareTheRowStride) {
  float data[12];
  for (int i = 0; i < 12; ++i) data[i] = static_cast<float>(i);
  const Matrix m = matrix(data, 3, 4);
  EXPECT_EQ(m.ld, 4);
  const Matrix inner = m.columns(1, 2).row_range(1, 2);
  EXPECT_EQ(inner.rows, 2);
  EXPECT_EQ(inner.cols, 2);
  EXPECT_EQ(inner.ld, 4);
  EXPECT_EQ(inner.f32()[0], 5.0f);
  EXPECT_EQ(inner.f32()[inner.ld + 1], 10.0f);
  EXPECT_TRUE(Matrix{}.empty());
  EXPECT_FALSE(m.empty());
}

TEST(Matrix, ViewsStepByTheElementSize) {
  double data[6] = {0, 1, 2, 3, 4, 5};
  const Matrix m{data, 2, 3, 3, DType::kF64};
  EXPECT_EQ(m.row_range(1, 1).columns(2, 1).data, data + 5);
}

}  // namespace
}  // namespace heddle
