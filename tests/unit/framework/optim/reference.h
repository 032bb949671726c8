// The optimizer as equations, in fp64 and without regard to speed: one matrix at a time, the way
// the papers write it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace heddle::testing {

using Vec = std::vector<double>;

// (m, k) x (k, n), row-major.
inline Vec product(const Vec& a, const Vec& b, int64_t m, int64_t k, int64_t n) {
  Vec c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

inline Vec transposed(const Vec& a, int64_t m, int64_t n) {
  Vec t(a.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) t[j * m + i] = a[i * n + j];
  }
  return t;
}

inline double norm(const Vec& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

struct MuonReference {
  int64_t m, n;
  Vec momentum = Vec(static_cast<size_t>(m * n), 0.0);
  Vec second = Vec(static_cast<size_t>(std::max(m, n)), 0.0);

  // One step with rate lr (without the shape factor) on p.
  void step(const Vec& grad, double mu, double lr, double decay, Vec* p) {
    Vec x = normalized(nesterov(grad, mu));
    iterate(&x);
    const double snap = std::sqrt(static_cast<double>(std::min(m, n))) / std::max(norm(x), 1e-6);
    for (double& v : x) v *= snap;
    reduce_variance(&x);
    lr *= std::sqrt(std::max(1.0, static_cast<double>(m) / static_cast<double>(n)));
    for (size_t i = 0; i < x.size(); ++i) {
      const double before = (*p)[i];
      (*p)[i] -= lr * x[i];
      if (x[i] * before >= 0) (*p)[i] -= lr * decay * before;
    }
  }

  Vec nesterov(const Vec& grad, double mu) {
    Vec x(grad.size());
    for (size_t i = 0; i < grad.size(); ++i) {
      momentum[i] += (1 - mu) * (grad[i] - momentum[i]);
      x[i] = grad[i] + mu * (momentum[i] - grad[i]);
    }
    return x;
  }

  Vec normalized(Vec x) const {
    const double target = norm(x) / std::sqrt(static_cast<double>(m));
    for (int64_t r = 0; r < m; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < n; ++c) sum += x[r * n + c] * x[r * n + c];
      const double scale = target / std::max(std::sqrt(sum), 1e-6);
      for (int64_t c = 0; c < n; ++c) x[r * n + c] *= scale;
    }
    const double whole = 1.01 * norm(x) + 1e-6;
    for (double& v : x) v /= whole;
    return x;
  }

  // Always X (aI + bA + cA^2) with A = X^T X on the (n, n) side, which is the same polynomial.
  void iterate(Vec* x) const {
    constexpr std::array<std::array<double, 3>, 5> kSteps = {{
        {8.156554524902461, -22.48329292557795, 15.878769915207462},
        {4.042929935166739, -2.808917465908714, 0.5000178451051316},
        {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
        {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
        {2.3465413258596377, -1.7097828382687081, 0.42323551169305323},
    }};
    for (const auto& [a, b, c] : kSteps) {
      const Vec gram = product(transposed(*x, m, n), *x, n, m, n);
      Vec poly = product(gram, gram, n, n, n);
      for (size_t i = 0; i < poly.size(); ++i) poly[i] = b * gram[i] + c * poly[i];
      for (int64_t i = 0; i < n; ++i) poly[i * n + i] += a;
      *x = product(*x, poly, m, n, n);
    }
  }

  void reduce_variance(Vec* x) {
    const bool rows = m >= n;
    const int64_t count = rows ? m : n, over = rows ? n : m;
    Vec mean(static_cast<size_t>(count), 0.0);
    for (int64_t i = 0; i < m * n; ++i) {
      mean[rows ? i / n : i % n] += (*x)[i] * (*x)[i] / static_cast<double>(over);
    }
    double before = 0, after = 0;
    Vec w(mean.size());
    for (size_t i = 0; i < mean.size(); ++i) {
      second[i] += (1 - 0.9) * (mean[i] - second[i]);
      w[i] = 1 / std::sqrt(std::max(second[i], 1e-10));
      before += static_cast<double>(over) * mean[i];
      after += static_cast<double>(over) * mean[i] * w[i] * w[i];
    }
    const double keep = std::sqrt(before) / std::max(std::sqrt(after), 1e-10);
    for (int64_t i = 0; i < m * n; ++i) (*x)[i] *= w[rows ? i / n : i % n] * keep;
  }
};

struct AdamWReference {
  double lr, beta1, beta2, eps, decay;
  Vec mean = {}, square = {};
  int64_t steps = 0;

  void step(const Vec& grad, double lr_multiplier, Vec* p) {
    mean.resize(grad.size());
    square.resize(grad.size());
    ++steps;
    const double rate = lr * lr_multiplier;
    for (size_t i = 0; i < grad.size(); ++i) {
      (*p)[i] *= 1 - rate * decay;
      mean[i] = beta1 * mean[i] + (1 - beta1) * grad[i];
      square[i] = beta2 * square[i] + (1 - beta2) * grad[i] * grad[i];
      const double m = mean[i] / (1 - std::pow(beta1, static_cast<double>(steps)));
      const double v = square[i] / (1 - std::pow(beta2, static_cast<double>(steps)));
      (*p)[i] -= rate * m / (std::sqrt(v) + eps);
    }
  }
};

}  // namespace heddle::testing
