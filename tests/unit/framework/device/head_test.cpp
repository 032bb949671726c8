#include "framework/core/error.h"
#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class Head : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(Head);

constexpr int64_t kRows = 10, kChannels = 24, kVocab = 70, kPadded = 128;

struct Problem {
  explicit Problem(float cap, float size = 1.0f) : softcap(cap) {
    h = noise(kRows * kChannels, "h");
    w = noise(kPadded * kChannels, "w", size);
    targets = some_tokens(kRows, kVocab);
    targets[3] = targets[9] = -1;
  }
  Matrix hm() { return matrix(h.data(), kRows, kChannels); }
  Matrix wm() { return matrix(w.data(), kPadded, kChannels); }

  Doubles logits(const Doubles& hd, const Doubles& wd) const {
    Doubles z(kRows * kVocab);
    for (int64_t n = 0; n < kRows; ++n) {
      for (int64_t v = 0; v < kVocab; ++v) {
        double sum = 0;
        for (int64_t c = 0; c < kChannels; ++c)
          sum += hd[n * kChannels + c] * wd[v * kChannels + c];
        z[n * kVocab + v] = softcap > 0 ? softcap * std::tanh(sum / softcap) : sum;
      }
    }
    return z;
  }
  Doubles losses(const Doubles& hd, const Doubles& wd) const {
    const Doubles z = logits(hd, wd);
    Doubles loss(kRows);
    for (int64_t n = 0; n < kRows; ++n) {
      if (targets[n] < 0) continue;
      const double* row = &z[n * kVocab];
      const double top = *std::max_element(row, row + kVocab);
      double sum = 0;
      for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(row[v] - top);
      loss[n] = std::log(sum) + top - row[targets[n]];
    }
    return loss;
  }
  double total(const Doubles& hd, const Doubles& wd) const {
    double sum = 0;
    for (double x : losses(hd, wd)) sum += x;
    return sum;
  }

  float softcap;
  Floats h, w;
  Ids targets;
};

const float kCaps[] = {0.0f, 15.0f, 100.0f};

TEST_P(Head, Logits) {
  for (float cap : kCaps) {
    Problem p(cap);
    Floats z(kRows * 75, 5.0f);
    ops_.head_logits(p.hm(), p.wm(), kVocab, cap, {z.data(), kRows, kVocab, 75, DType::kF32});
    Floats got;
    for (int64_t n = 0; n < kRows; ++n) {
      got.insert(got.end(), &z[n * 75], &z[n * 75] + kVocab);
      for (int64_t v = kVocab; v < 75; ++v) EXPECT_EQ(z[n * 75 + v], 5.0f);
    }
    EXPECT_LT(relative_error(got, p.logits(widen(p.h), widen(p.w))), 5e-7);
  }
}

TEST_P(Head, LossArgmaxAndGradients) {
  for (float cap : kCaps) {
    Problem p(cap);
    const Doubles h = widen(p.h), w = widen(p.w);
    const Doubles want = p.losses(h, w), z = p.logits(h, w);
    const auto want_dh = gradient(p.h, [&](const Doubles& x) { return p.total(x, w); });
    const auto change = gradient(p.w, [&](const Doubles& x) { return p.total(h, x); });
    const Floats dw0 = noise(kPadded * kChannels, "dw");
    for (int64_t chunk : {1, 3, 10, 16}) {
      Floats scratch(chunk * kPadded), loss(kRows), only(kRows), dh(p.h.size(), NAN), dw = dw0;
      Ids argmax(kRows);
      const Matrix dhm = matrix(dh.data(), kRows, kChannels);
      const Matrix dwm = matrix(dw.data(), kPadded, kChannels);
      const Matrix room = matrix(scratch.data(), chunk, kPadded);
      ops_.head_loss(p.hm(), p.wm(), kVocab, cap, p.targets.data(), room, loss.data(),
                     argmax.data(), &dhm, &dwm);
      ops_.head_loss(p.hm(), p.wm(), kVocab, cap, p.targets.data(), room, only.data(), nullptr,
                     nullptr, nullptr);
      EXPECT_LT(relative_error(loss, want), 5e-7);
      EXPECT_EQ(loss, only);
      EXPECT_EQ(loss[3], 0.0f);
      EXPECT_LT(relative_error(dh, want_dh), 2e-6);
      EXPECT_LT(relative_error(dw, plus(dw0, change)), 2e-6);
      for (int64_t n = 0; n < kRows; ++n) {
        const double* row = &z[n * kVocab];
        EXPECT_EQ(argmax[n], std::max_element(row, row + kVocab) - row);
      }
    }
  }
}

// Softmax of logits far apart: no overflow, no NaN, gradients of almost certain rows near 0.
TEST_P(Head, LargeLogits) {
  for (float cap : kCaps) {
    Problem p(cap, 100.0f);
    Floats scratch(4 * kPadded), loss(kRows), dh(p.h.size()), dw(p.w.size());
    const Matrix dhm = matrix(dh.data(), kRows, kChannels);
    const Matrix dwm = matrix(dw.data(), kPadded, kChannels);
    ops_.head_loss(p.hm(), p.wm(), kVocab, cap, p.targets.data(),
                   matrix(scratch.data(), 4, kPadded), loss.data(), nullptr, &dhm, &dwm);
    EXPECT_LT(relative_error(loss, p.losses(widen(p.h), widen(p.w))), 2e-6) << cap;
    for (float x : dh) ASSERT_TRUE(std::isfinite(x));
    for (float x : dw) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(Head, NaNReachesTheLoss) {
  for (float cap : kCaps) {
    Problem p(cap);
    p.h[2 * kChannels] = NAN;
    Floats scratch(kRows * kPadded), loss(kRows);
    ops_.head_loss(p.hm(), p.wm(), kVocab, cap, p.targets.data(),
                   matrix(scratch.data(), kRows, kPadded), loss.data(), nullptr, nullptr, nullptr);
    EXPECT_TRUE(std::isnan(loss[2])) << cap;
    EXPECT_TRUE(std::isfinite(loss[1])) << cap;
  }
}

TEST_P(Head, TargetsOutsideTheVocabularyAreErrors) {
  Problem p(15.0f);
  p.targets[0] = kVocab;
  Floats scratch(kRows * kPadded), loss(kRows);
  EXPECT_THROW(
      {
        ops_.head_loss(p.hm(), p.wm(), kVocab, 15.0f, p.targets.data(),
                       matrix(scratch.data(), kRows, kPadded), loss.data(), nullptr, nullptr,
                       nullptr);
        settle();
      },
      Error);
}

// A stride of whole pages is spread inside; a vocabulary that long has several chunks.
TEST_P(Head, PageStrideScratch) {
  constexpr int64_t kWide = 1024, kN = 9, kC = 8;
  const Floats h = noise(kN * kC, "h"), w = noise(kWide * kC, "w");
  const Ids targets = some_tokens(kN, kWide);
  Floats dense(kN * (kWide + 8)), paged(4 * kWide), loss(kN), loss2(kN), dh(kN * kC), dh2(kN * kC);
  Floats dw(kWide * kC), dw2(kWide * kC);
  const Matrix hm = matrix(const_cast<float*>(h.data()), kN, kC);
  const Matrix wm = matrix(const_cast<float*>(w.data()), kWide, kC);
  const Matrix a = matrix(dh.data(), kN, kC), b = matrix(dh2.data(), kN, kC);
  const Matrix c = matrix(dw.data(), kWide, kC), d = matrix(dw2.data(), kWide, kC);
  ops_.head_loss(hm, wm, kWide, 15.0f, targets.data(), matrix(dense.data(), kN, kWide + 8),
                 loss.data(), nullptr, &a, &c);
  ops_.head_loss(hm, wm, kWide, 15.0f, targets.data(), matrix(paged.data(), 4, kWide), loss2.data(),
                 nullptr, &b, &d);
  EXPECT_LT(relative_error(loss2, widen(loss)), 1e-6);
  EXPECT_LT(relative_error(dh2, widen(dh)), 1e-6);
  EXPECT_LT(relative_error(dw2, widen(dw)), 1e-6);
}

}  // namespace
}  // namespace heddle::testing
