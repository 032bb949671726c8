#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class OptimizerOps : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(OptimizerOps);

TEST_P(OptimizerOps, AdamWOverThreeSteps) {
  for (int64_t n : {1, 77, 5000}) {
    Floats p = noise(n, "p"), m(n), v(n);
    Doubles pd = widen(p), md(n), vd(n);
    for (int64_t step = 1; step <= 3; ++step) {
      const Floats g = noise(n, "g" + std::to_string(step), 10.0f);
      const AdamWStep op{0.02f, 0.8f, 0.95f, 1e-10f, 0.05f, step, 0.25f};
      const AdamWValues values = op.values();
      ops_.adamw(&values, g.data(), p.data(), m.data(), v.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        const double grad = g[i] * 0.25;
        pd[i] *= 1 - static_cast<double>(op.lr) * op.weight_decay;
        md[i] += (1 - static_cast<double>(op.beta1)) * (grad - md[i]);
        vd[i] += (1 - static_cast<double>(op.beta2)) * (grad * grad - vd[i]);
        const double bias1 = 1 - std::pow(op.beta1, step), bias2 = 1 - std::pow(op.beta2, step);
        pd[i] -= op.lr / bias1 * md[i] / (std::sqrt(vd[i] / bias2) + op.eps);
      }
    }
    EXPECT_LT(relative_error(p, pd), 1e-6);
    EXPECT_LT(relative_error(m, md), 1e-6);
    EXPECT_LT(relative_error(v, vd), 1e-6);
  }
}

double norm(const Doubles& x, int64_t begin, int64_t count, int64_t stride) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[begin + i * stride] * x[begin + i * stride];
  return std::sqrt(sum);
}

double norm(const Doubles& x) {
  return norm(x, 0, static_cast<int64_t>(x.size()), 1);
}

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{2, 12}, {12, 2}, {16, 16}, {1, 5}, {48, 130}, {130, 48}, {70, 200}};

TEST_P(OptimizerOps, MuonPrepare) {
  constexpr double kMomentum = 0.85f, kGradScale = 0.125f;
  for (const Shape& s : kShapes) {
    const int64_t size = s.rows * s.cols;
    const Floats g = noise(size, "g");
    Floats m = noise(size, "m"), x(size, NAN);
    Doubles md = widen(m), xd(size);
    const MuonValues values{.momentum = 0.85f, .grad_scale = 0.125f};
    ops_.muon_prepare(&values, g.data(), m.data(), s.rows, s.cols, x.data());
    for (int64_t i = 0; i < size; ++i) {
      const double grad = kGradScale * g[i];
      md[i] += (1 - kMomentum) * (grad - md[i]);
      xd[i] = grad + kMomentum * (md[i] - grad);
    }
    const double wanted = norm(xd) / std::sqrt(static_cast<double>(s.rows));
    for (int64_t r = 0; r < s.rows; ++r) {
      const double factor = wanted / std::max(norm(xd, r * s.cols, s.cols, 1), 1e-6);
      for (int64_t c = 0; c < s.cols; ++c) xd[r * s.cols + c] *= factor;
    }
    const double divisor = 1.01 * norm(xd) + 1e-6;
    for (double& v : xd) v /= divisor;
    EXPECT_LT(relative_error(m, md), 5e-7);
    EXPECT_LT(relative_error(x, xd), 1e-6) << s.rows << "x" << s.cols;
  }
}

TEST_P(OptimizerOps, MuonFinish) {
  constexpr double kBeta2 = 0.9f, kLr = 0.02f, kDecay = 0.3f;
  for (const Shape& s : kShapes) {
    const int64_t size = s.rows * s.cols;
    const bool by_row = s.rows >= s.cols;
    const int64_t lines = by_row ? s.rows : s.cols, length = by_row ? s.cols : s.rows;
    Floats x = noise(size, "x"), p = noise(size, "p"), second = noise(lines, "second");
    for (float& v : second) v = std::abs(v);
    Doubles xd = widen(x), pd = widen(p), sd = widen(second);
    const MuonValues values{.lr = 0.02f, .weight_decay = 0.3f};
    ops_.muon_finish(&values, x.data(), second.data(), 0.9f, s.rows, s.cols, p.data());

    const double snap =
        std::sqrt(static_cast<double>(std::min(s.rows, s.cols))) / std::max(norm(xd), 1e-6);
    for (double& v : xd) v *= snap;
    double before = 0, after = 0;
    Doubles w(lines);
    for (int64_t i = 0; i < lines; ++i) {
      const double n = by_row ? norm(xd, i * s.cols, s.cols, 1) : norm(xd, i, s.rows, s.cols);
      const double u = n * n / static_cast<double>(length);
      sd[i] += (1 - kBeta2) * (u - sd[i]);
      w[i] = 1 / std::sqrt(std::max(sd[i], 1e-10));
      before += static_cast<double>(length) * u;
      after += static_cast<double>(length) * u * w[i] * w[i];
    }
    for (int64_t i = 0; i < size; ++i) {
      const double update = xd[i] * w[by_row ? i / s.cols : i % s.cols] * std::sqrt(before) /
                            std::max(std::sqrt(after), 1e-10);
      const double decay = update * pd[i] >= 0 ? kLr * kDecay * pd[i] : 0;
      pd[i] -= kLr * update + decay;
    }
    EXPECT_LT(relative_error(p, pd), 1e-6) << s.rows << "x" << s.cols;
    EXPECT_LT(relative_error(second, sd), 1e-6);
  }
}

// A matrix that got no gradient yet (zero-initialised projections' inputs) stays finite.
TEST_P(OptimizerOps, MuonOfZeros) {
  for (const Shape& s : {Shape{8, 20}, {20, 8}}) {
    Floats g(160), m(160), x(160, 1.0f), second(20), p(160, 1.0f);
    const MuonValues values{0.1f, 0.9f, 0.5f, 1.0f};
    ops_.muon_prepare(&values, g.data(), m.data(), s.rows, s.cols, x.data());
    EXPECT_EQ(x, Floats(160, 0.0f));
    ops_.muon_finish(&values, x.data(), second.data(), 0.9f, s.rows, s.cols, p.data());
    EXPECT_EQ(second, Floats(20, 0.0f));
    EXPECT_LT(relative_error(p, Doubles(160, 0.95)), 1e-6);  // 0 * p >= 0: decayed
  }
}

}  // namespace
}  // namespace heddle::testing
