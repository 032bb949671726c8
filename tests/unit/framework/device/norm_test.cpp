#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class MixNormOps : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(MixNormOps);

struct Problem {
  int64_t n, channels;
  bool has_a, has_b;
  float sign;
  Floats a = {0.8f}, b = {0.3f};
  Floats x, z;

  Problem(int64_t rows, int64_t width, bool with_a, bool with_b, float s)
      : n(rows),
        channels(width),
        has_a(with_a),
        has_b(with_b),
        sign(s),
        x(noise(rows * width, "x")),
        z(noise(rows * width, "z")) {}

  Mix mix() const { return {has_a ? a.data() : nullptr, has_b ? b.data() : nullptr, sign}; }
  const float* zp() const { return has_b ? z.data() : nullptr; }

  Doubles mixed(const Doubles& xd, const Doubles& zd, double ad, double bd) const {
    Doubles y = xd;
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = (has_a ? ad : 1.0) * xd[i] + (has_b ? sign * bd * zd[i] : 0.0);
    }
    return y;
  }
  Doubles mixed() const { return mixed(widen(x), widen(z), a[0], b[0]); }
};

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (int64_t channels : {1, 5, 48, 130}) {
    for (int64_t n : {1, 9}) {
      for (bool a : {false, true}) {
        for (bool b : {false, true}) all.emplace_back(n, channels, a, b, b ? -1.0f : 1.0f);
      }
    }
  }
  return all;
}

TEST_P(MixNormOps, ForwardIntoNewMemoryAndInPlace) {
  for (const Problem& p : problems()) {
    Floats y(p.x.size()), h(p.x.size()), rstd(p.n);
    ops_.mix_norm_forward(p.mix(), p.x.data(), p.zp(), p.n, p.channels, y.data(), h.data(),
                          rstd.data());
    EXPECT_LT(relative_error(y, p.mixed()), 2e-7);
    EXPECT_LT(relative_error(h, rms(p.mixed(), p.channels)), 4e-7);
    Floats same = p.x, h2(p.x.size()), rstd2(p.n);
    ops_.mix_norm_forward(p.mix(), same.data(), p.zp(), p.n, p.channels, same.data(), h2.data(),
                          rstd2.data());
    EXPECT_EQ(same, y);
    EXPECT_EQ(h2, h);
    EXPECT_EQ(rstd2, rstd);
  }
}

TEST_P(MixNormOps, Backward) {
  for (const Problem& p : problems()) {
    const int64_t size = p.n * p.channels;
    Floats y(size), h(size), rstd(p.n);
    ops_.mix_norm_forward(p.mix(), p.x.data(), p.zp(), p.n, p.channels, y.data(), h.data(),
                          rstd.data());
    const Floats dh = noise(size, "dh"), dy = noise(size, "dy"), dz0 = noise(size, "dz");
    for (bool has_dy : {false, true}) {
      // dy, in place; da, db, dz accumulate.
      Floats dx = has_dy ? dy : Floats(size, NAN), dz = dz0, da = {2.0f}, db = {-1.0f};
      ops_.mix_norm_backward(p.mix(), dh.data(), h.data(), rstd.data(),
                             has_dy ? dx.data() : nullptr, p.has_a ? p.x.data() : nullptr, p.zp(),
                             p.n, p.channels, dx.data(), p.has_b ? dz.data() : nullptr,
                             p.has_a ? da.data() : nullptr, p.has_b ? db.data() : nullptr);
      const auto value = [&](const Doubles& x, const Doubles& z, double a, double b) {
        const Doubles mixed = p.mixed(x, z, a, b);
        return dot(rms(mixed, p.channels), dh) + (has_dy ? dot(mixed, dy) : 0.0);
      };
      const Doubles x = widen(p.x), z = widen(p.z);
      const double a = p.a[0], b = p.b[0];
      const auto want_x = gradient(p.x, [&](const Doubles& v) { return value(v, z, a, b); });
      // With one channel and no dy the gradient is the rounding of a difference of equals.
      const double slack = p.channels == 1 ? 1e-6 * std::sqrt(static_cast<double>(p.n)) *
                                                 (1 + 1 / std::abs(want_x[0]))
                                           : 0;
      if (p.channels > 1 || has_dy) {
        EXPECT_LT(relative_error(dx, want_x), 3e-6 + slack);
      }
      if (p.channels == 1) continue;
      if (p.has_a) {
        const auto g = gradient(p.a, [&](const Doubles& v) { return value(x, z, v[0], b); });
        EXPECT_NEAR(da[0], 2.0 + g[0], 3e-5 * (1 + std::abs(g[0])));
      }
      if (!p.has_b) continue;
      const auto gz = gradient(p.z, [&](const Doubles& v) { return value(x, v, a, b); });
      const auto gb = gradient(p.b, [&](const Doubles& v) { return value(x, z, a, v[0]); });
      EXPECT_LT(relative_error(dz, plus(dz0, gz)), 2e-6);
      EXPECT_NEAR(db[0], -1.0 + gb[0], 3e-5 * (1 + std::abs(gb[0])));
    }
  }
}

}  // namespace
}  // namespace heddle::testing
