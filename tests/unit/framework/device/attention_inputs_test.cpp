#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class AttentionInputs : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(AttentionInputs);

struct RopeCase {
  int64_t batch, seq_len, heads, head_dim, ld;
  bool norm, has_pos0;
};

// Columns before and after the slice belong to somebody else.
constexpr int64_t kColumn = 3;
constexpr int64_t kPositions = 40;

struct RopeProblem {
  explicit RopeProblem(const RopeCase& rope_case) : c(rope_case) {
    cos = noise(kPositions * c.head_dim / 2, "angle");
    sin = cos;
    for (float& angle : cos) angle = std::cos(angle);
    for (float& angle : sin) angle = std::sin(angle);
    pos0 = {7, 0, 30};
    op = {.cos = cos.data(),
          .sin = sin.data(),
          .seq_len = c.seq_len,
          .pos0 = c.has_pos0 ? pos0.data() : nullptr,
          .heads = c.heads,
          .head_dim = c.head_dim,
          .norm = c.norm,
          .scale = 1.2f};
    x = noise(rows() * c.ld, "x");
  }
  int64_t rows() const { return c.batch * c.seq_len; }
  Matrix slice(Floats& m) const {
    return Matrix{m.data(), rows(), c.ld, c.ld, DType::kF32}.columns(kColumn, c.heads * c.head_dim);
  }
  // Forward on the whole buffer; columns outside of the slice stay.
  Doubles forward(Doubles m) const {
    const int64_t half = c.head_dim / 2;
    for (int64_t n = 0; n < rows(); ++n) {
      const int64_t p = n % c.seq_len + (c.has_pos0 ? pos0[n / c.seq_len] : 0);
      for (int64_t h = 0; h < c.heads; ++h) {
        double* v = &m[n * c.ld + kColumn + h * c.head_dim];
        Doubles r(c.head_dim);
        for (int64_t i = 0; i < half; ++i) {
          const double co = cos[p * half + i], si = sin[p * half + i];
          r[i] = v[i] * co + v[i + half] * si;
          r[i + half] = -v[i] * si + v[i + half] * co;
        }
        if (c.norm) r = rms(r, c.head_dim);
        for (int64_t i = 0; i < c.head_dim; ++i) v[i] = op.scale * r[i];
      }
    }
    return m;
  }
  RopeCase c;
  Floats cos, sin, x;
  Ids pos0;
  RopeNorm op;
};

const RopeCase kRopes[] = {{1, 1, 1, 2, 8, true, false},     {2, 3, 3, 12, 41, true, true},
                           {3, 2, 2, 16, 38, false, true},   {2, 4, 1, 64, 70, true, false},
                           {1, 3, 2, 128, 262, true, false}, {1, 2, 2, 34, 75, false, false}};

TEST_P(AttentionInputs, RopeForwardAndBackward) {
  for (const RopeCase& c : kRopes) {
    RopeProblem p(c);
    Floats y = p.x, rstd(p.rows() * c.heads);
    ops_.rope_norm_forward(p.op, p.slice(y), c.norm ? rstd.data() : nullptr);
    EXPECT_LT(relative_error(y, p.forward(widen(p.x))), 5e-7) << c.head_dim;

    const Floats dy = noise(p.rows() * c.ld, "dy");
    Floats dx = dy;
    ops_.rope_norm_backward(p.op, p.slice(y), c.norm ? rstd.data() : nullptr, p.slice(dx));
    const Doubles want = gradient(p.x, [&](const Doubles& x) { return dot(p.forward(x), dy); });
    EXPECT_LT(relative_error(dx, want), 3e-6) << c.head_dim;
  }
}

struct ValueCase {
  int64_t n, kv_heads, head_dim, channels;
};

struct ValueProblem {
  explicit ValueProblem(const ValueCase& value_case)
      : c(value_case),
        width(c.kv_heads * c.head_dim),
        ld(width + 5),
        table_ld(width + 2),
        tokens(some_tokens(c.n, kVocab)),
        h(noise(c.n * c.channels, "h")),
        wg(noise(c.kv_heads * kValueGateChannels, "wg", 0.4f)),
        ve(noise(kVocab * table_ld, "ve")),
        v(noise(c.n * ld, "v")) {}

  Matrix rows(Floats& m) const { return {m.data(), c.n, width, ld, DType::kF32}; }
  Matrix table(Floats& m) const { return {m.data(), kVocab, width, table_ld, DType::kF32}; }
  Doubles forward(const Doubles& hd, const Doubles& wd, const Doubles& ved) const {
    Doubles out = widen(v);
    for (int64_t n = 0; n < c.n; ++n) {
      for (int64_t k = 0; k < c.kv_heads; ++k) {
        double argument = 0;
        for (int64_t i = 0; i < kValueGateChannels; ++i) {
          argument += hd[n * c.channels + i] * wd[k * kValueGateChannels + i];
        }
        for (int64_t d = k * c.head_dim; d < (k + 1) * c.head_dim; ++d) {
          out[n * ld + d] += 3 * sigmoid(argument) * ved[tokens[n] * table_ld + d];
        }
      }
    }
    return out;
  }

  static constexpr int64_t kVocab = 6;
  ValueCase c;
  int64_t width, ld, table_ld;
  Ids tokens;
  Floats h, wg, ve, v;
};

TEST_P(AttentionInputs, ValueEmbedForwardAndBackward) {
  for (const ValueCase& c : {ValueCase{1, 1, 2, 12}, {21, 3, 12, 48}, {30, 2, 16, 17}}) {
    ValueProblem p(c);
    Floats v = p.v, gate(c.n * c.kv_heads);
    ops_.value_embed_forward(p.h.data(), c.channels, p.wg.data(), p.table(p.ve), p.tokens.data(),
                             c.kv_heads, p.rows(v), gate.data());
    const Doubles h = widen(p.h), wg = widen(p.wg), ve = widen(p.ve);
    EXPECT_LT(relative_error(v, p.forward(h, wg, ve)), 3e-7);

    Floats dv = noise(c.n * p.ld, "dv");
    for (int64_t n = 0; n < c.n; ++n) {
      for (int64_t i = p.width; i < p.ld; ++i) dv[n * p.ld + i] = 0;
    }
    const Floats dh0 = noise(c.n * c.channels, "dh"), dve0 = noise(p.ve.size(), "dve");
    Floats dwg(p.wg.size(), 1.5f), dh = dh0, dve = dve0;
    Indexed indexed(ops_, p.tokens, ValueProblem::kVocab);
    ops_.value_embed_backward(p.rows(dv), p.h.data(), c.channels, p.wg.data(), p.table(p.ve),
                              p.tokens.data(), indexed.index, c.kv_heads, gate.data(), dwg.data(),
                              dh.data(), p.table(dve));
    const auto g_h = gradient(p.h, [&](const Doubles& x) { return dot(p.forward(x, wg, ve), dv); });
    const auto g_w = gradient(p.wg, [&](const Doubles& x) { return dot(p.forward(h, x, ve), dv); });
    const auto g_e = gradient(p.ve, [&](const Doubles& x) { return dot(p.forward(h, wg, x), dv); });
    EXPECT_LT(relative_error(dh, plus(dh0, g_h)), 2e-6);
    EXPECT_LT(relative_error(dwg, plus(Floats(p.wg.size(), 1.5f), g_w)), 2e-6);
    EXPECT_LT(relative_error(dve, plus(dve0, g_e)), 2e-6);
  }
}

}  // namespace
}  // namespace heddle::testing
