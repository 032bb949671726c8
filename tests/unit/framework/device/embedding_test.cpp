#include "framework/core/error.h"
#include "tests/unit/framework/device/support.h"

namespace heddle::testing {
namespace {

class Embedding : public OpsTest {};
HEDDLE_ON_EVERY_TABLE(Embedding);

TEST_P(Embedding, IndexGroupsRowsByToken) {
  const int64_t vocab = 19;
  const Ids tokens = some_tokens(50, vocab);
  Indexed indexed(ops_, tokens, vocab);
  const TokenIndex& index = indexed.index;
  EXPECT_EQ(index.starts[0], 0);
  EXPECT_EQ(index.starts[index.unique], 50);
  std::vector<bool> seen(50);
  EXPECT_EQ(index.rows, 50);
  for (int64_t u = 0; u < index.unique; ++u) {
    if (index.starts[u] == 50) continue;  // beyond the last id
    if (u > 0) {
      EXPECT_LT(index.ids[u - 1], index.ids[u]);
    }
    ASSERT_LT(index.starts[u], index.starts[u + 1]);
    for (int r = index.starts[u]; r < index.starts[u + 1]; ++r) {
      EXPECT_EQ(tokens[index.order[r]], index.ids[u]);
      if (r > index.starts[u]) {
        EXPECT_LT(index.order[r - 1], index.order[r]);
      }
      seen[index.order[r]] = true;
    }
  }
  EXPECT_EQ(seen, std::vector<bool>(50, true));
  EXPECT_EQ(indexed.scratch, Ids(static_cast<size_t>(vocab) + 1, 0));
}

TEST_P(Embedding, TokensOutsideTheVocabularyAreErrors) {
  const Floats wte(4 * 8);
  Floats u(8), rstd(1);
  for (int32_t bad : {-1, 4}) {
    EXPECT_THROW(
        {
          ops_.embed_norm_forward(&bad, 1, matrix(const_cast<float*>(wte.data()), 4, 8), u.data(),
                                  rstd.data());
          settle();
        },
        Error);
    EXPECT_THROW(
        {
          Indexed(ops_, {bad}, 4);
          settle();
        },
        Error);
    settle();  // told once
  }
}

TEST_P(Embedding, ForwardAndScatter) {
  const int64_t vocab = 9;
  for (int64_t channels : {1, 3, 48, 128}) {
    for (int64_t n : {1, 40}) {
      const Ids tokens = some_tokens(n, vocab);
      const int64_t ld = channels + 5;  // rows of the table need not be dense
      Floats table = noise(vocab * ld, "wte");
      Floats u(n * channels), rstd(n);
      const Matrix wte{table.data(), vocab, channels, ld, DType::kF32};
      ops_.embed_norm_forward(tokens.data(), n, wte, u.data(), rstd.data());
      const auto forward = [&](const Doubles& t) {
        Doubles x;
        for (int32_t id : tokens) x.insert(x.end(), &t[id * ld], &t[id * ld] + channels);
        return rms(x, channels);
      };
      EXPECT_LT(relative_error(u, forward(widen(table))), 3e-7);

      const Floats du = noise(n * channels, "du"), before = noise(vocab * ld, "before");
      Floats dtable = before;
      Indexed indexed(ops_, tokens, vocab);
      ops_.embed_norm_backward(du.data(), u.data(), rstd.data(), indexed.index,
                               {dtable.data(), vocab, channels, ld, DType::kF32});
      const Doubles want =
          plus(before, gradient(table, [&](const Doubles& t) { return dot(forward(t), du); }));
      EXPECT_LT(relative_error(dtable, want), 2e-6) << channels << " " << n;
    }
  }
}

struct SmearCase {
  int64_t batch, seq_len, channels;
};

Doubles smear(const SmearCase& s, const Doubles& u, const Doubles& w, double lambda,
              const Doubles& prev) {
  Doubles x = u;
  for (int64_t n = 0; n < s.batch * s.seq_len; ++n) {
    const double* before = n % s.seq_len != 0 ? &u[(n - 1) * s.channels]
                           : prev.empty()     ? nullptr
                                              : &prev[n / s.seq_len * s.channels];
    if (before == nullptr) continue;
    double argument = 0;
    for (int64_t i = 0; i < kSmearChannels; ++i) argument += w[i] * u[n * s.channels + i];
    for (int64_t i = 0; i < s.channels; ++i) {
      x[n * s.channels + i] += lambda * sigmoid(argument) * before[i];
    }
  }
  return x;
}

const SmearCase kSmears[] = {{1, 1, 24}, {3, 1, 48}, {2, 5, 24}, {2, 7, 48}};

TEST_P(Embedding, SmearForwardWithAndWithoutPrevious) {
  for (const SmearCase& s : kSmears) {
    const int64_t n = s.batch * s.seq_len;
    const Floats u = noise(n * s.channels, "u"), w = noise(kSmearChannels, "w", 0.3f);
    const Floats prev = noise(s.batch * s.channels, "prev");
    const float lambda = 0.7f;
    for (bool has_prev : {false, true}) {
      Floats x(u.size()), gate(n, -1.0f);
      ops_.smear_forward(u.data(), s.batch, s.seq_len, s.channels, w.data(), &lambda,
                         has_prev ? prev.data() : nullptr, x.data(), gate.data());
      const Doubles want = smear(s, widen(u), widen(w), lambda, has_prev ? widen(prev) : Doubles{});
      EXPECT_LT(relative_error(x, want), 3e-7);
      if (!has_prev) {
        EXPECT_EQ(gate[0], 0.0f);
      }
    }
  }
}

TEST_P(Embedding, SmearBackward) {
  for (const SmearCase& s : kSmears) {
    const int64_t n = s.batch * s.seq_len;
    const Floats u = noise(n * s.channels, "u"), w = noise(kSmearChannels, "w", 0.3f);
    const Floats dx = noise(n * s.channels, "dx");
    const Floats lambda = {0.7f};
    Floats x(u.size()), gate(n), du(u.size(), NAN), dw(kSmearChannels, 2.0f), dlambda = {3.0f};
    ops_.smear_forward(u.data(), s.batch, s.seq_len, s.channels, w.data(), lambda.data(), nullptr,
                       x.data(), gate.data());
    ops_.smear_backward(dx.data(), u.data(), gate.data(), s.batch, s.seq_len, s.channels, w.data(),
                        lambda.data(), du.data(), dw.data(), dlambda.data());
    const auto value = [&](const Doubles& ud, const Doubles& wd, double l) {
      return dot(smear(s, ud, wd, l, {}), dx);
    };
    const Doubles want_u =
        gradient(u, [&](const Doubles& v) { return value(v, widen(w), lambda[0]); });
    const Doubles want_w =
        plus(Floats(kSmearChannels, 2.0f),
             gradient(w, [&](const Doubles& v) { return value(widen(u), v, lambda[0]); }));
    const Doubles want_l =
        plus({3.0f},
             gradient(lambda, [&](const Doubles& v) { return value(widen(u), widen(w), v[0]); }));
    EXPECT_LT(relative_error(du, want_u), 2e-6);
    EXPECT_LT(relative_error(dw, want_w), 2e-6);
    EXPECT_LT(relative_error(dlambda, want_l), 2e-6);
  }
}

}  // namespace
}  // namespace heddle::testing
