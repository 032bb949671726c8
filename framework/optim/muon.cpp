#include "framework/optim/muon.h"

#include <algorithm>
#include <utility>

namespace heddle {

Matrix polar_express(Ops& ops, const Matrix& x, const Matrix& spare, const Matrix& gram,
                     const Matrix& poly) {
  const bool tall = x.rows > x.cols;
  Matrix from = x, to = spare;
  for (const PolarStep& step : kPolarExpress) {
    ops.matmul(from, tall, from, !tall, gram);  // A = X^T X or X X^T
    ops.copy(poly.f32(), gram.f32(), gram.rows * gram.cols);
    ops.matmul(gram, false, gram, false, poly, step.c, step.b);  // bA + cA^2
    ops.copy(to.f32(), from.f32(), from.rows * from.cols);
    if (tall) {
      ops.matmul(from, false, poly, false, to, 1.0f, step.a);  // aX + X(bA + cA^2)
    } else {
      ops.matmul(poly, false, from, false, to, 1.0f, step.a);  // aX + (bA + cA^2)X
    }
    std::swap(from, to);
  }
  return from;
}

void muon_update(Ops& ops, const MuonValues* values, int64_t rows, int64_t cols, const float* grad,
                 float* p, float* momentum, float* second, const MuonScratch& scratch) {
  const int64_t side = std::min(rows, cols);
  ops.muon_prepare(values, grad, momentum, rows, cols, scratch.x);
  const Matrix polar =
      polar_express(ops, matrix(scratch.x, rows, cols), matrix(scratch.spare, rows, cols),
                    matrix(scratch.gram, side, side), matrix(scratch.poly, side, side));
  ops.muon_finish(values, polar.f32(), second, kNorMuonBeta2, rows, cols, p);
}

}  // namespace heddle
