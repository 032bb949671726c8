// The model against the golden data of tests/golden/.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/model/gpt.h"
#include "tests/unit/support/golden.h"

namespace heddle {
namespace {

using heddle::testing::GoldenCase;
using heddle::testing::relative_l2;
using heddle::testing::TestModel;

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Golden()
      : golden(GetParam()),
        spec(resolve_model(golden.config(), 0)),
        tokens(golden.ints("tokens")),
        targets(golden.ints("targets")) {}

  GoldenCase golden;
  ModelSpec spec;
  std::vector<int32_t> tokens, targets;
};

TEST_P(Golden, LossAndGradients) {
  TestModel model(spec, golden.batch(), spec.sequence_len, true);
  model.load(golden);
  const LossSum sum = model.gpt.forward_backward(tokens.data(), targets.data(), golden.batch());
  const double loss = golden.value("loss");
  EXPECT_NEAR(sum.nats / static_cast<double>(sum.tokens), loss, 5e-6 * loss);
  for (const ParamInfo& info : model.gpt.layout().params()) {
    std::vector<float> grad = model.gradient(info);
    for (float& g : grad) g /= static_cast<float>(sum.tokens);
    const float* want = golden.tensors.tensor("grad/" + info.name).f32();
    if (info.kind == ParamKind::kBackoutLambda && std::string(GetParam()) == "l_mha") {
      // The subtracted layer is the last one: the factor only scales what is normalised next, and
      // the gradient is 0 up to rounding.
      EXPECT_NEAR(grad[0], want[0], 1e-6);
      continue;
    }
    EXPECT_LE(relative_l2(grad.data(), want, info.size()), golden.gate("grad/" + info.name))
        << info.name;
  }
}

TEST_P(Golden, LossPerToken) {
  for (const bool training : {false, true}) {
    TestModel model(spec, golden.batch(), spec.sequence_len, training);
    model.load(golden);
    std::vector<float> losses(tokens.size());
    const LossSum sum =
        model.gpt.evaluate(tokens.data(), targets.data(), golden.batch(), losses.data());
    const double loss = golden.value("loss");
    EXPECT_NEAR(sum.nats / static_cast<double>(sum.tokens), loss, 5e-6 * loss);
    EXPECT_LE(relative_l2(losses.data(), golden.tensors.tensor("loss_per_token").f32(),
                          static_cast<int64_t>(losses.size())),
              golden.gate("loss_per_token"));
  }
}

TEST_P(Golden, LogitsAndArgmax) {
  TestModel model(spec, golden.batch(), spec.sequence_len, false);
  model.load(golden);
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < golden.batch(); ++b) {
    for (int64_t t = 0; t < spec.sequence_len; t += 37) rows.push_back(b * spec.sequence_len + t);
  }
  const auto n = static_cast<int64_t>(rows.size());
  std::vector<float> logits(static_cast<size_t>(n * spec.vocab_size));
  model.gpt.logits(tokens.data(), golden.batch(), rows.data(), n, logits.data());
  const auto& want = golden.tensors.tensor("logits");
  ASSERT_EQ(want.numel(), static_cast<int64_t>(logits.size()));
  EXPECT_LE(relative_l2(logits.data(), want.f32(), want.numel()), golden.gate("logits"));

  std::vector<int32_t> best(tokens.size());
  model.gpt.evaluate(tokens.data(), targets.data(), golden.batch(), nullptr, best.data());
  for (int64_t i = 0; i < n; ++i) {
    const float* z = logits.data() + i * spec.vocab_size;
    EXPECT_EQ(best[static_cast<size_t>(rows[static_cast<size_t>(i)])],
              std::max_element(z, z + spec.vocab_size) - z);
  }
}

TEST_P(Golden, DecodeLogits) {
  TestModel model(spec, 1, spec.sequence_len, false);
  model.load(golden);
  const auto prompt = golden.ints("decode_prompt"), text = golden.ints("decode_cached");
  KvCache cache(spec, *model.host.device, 1, 68);
  const auto& want = golden.tensors.tensor("decode_logits");
  std::vector<float> logits(static_cast<size_t>(want.numel()));
  model.gpt.decode(prompt.data(), 1, 20, cache, logits.data());
  for (int64_t i = 1; i < 48; ++i) {
    model.gpt.decode(&text[static_cast<size_t>(i - 1)], 1, 1, cache,
                     logits.data() + i * spec.vocab_size);
  }
  EXPECT_EQ(cache.length(0), 67);
  EXPECT_LE(relative_l2(logits.data(), want.f32(), want.numel()), golden.gate("decode_logits"));
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, ::testing::Values("sssl_gqa", "l_mha", "sl_mqa"));

}  // namespace
}  // namespace heddle
