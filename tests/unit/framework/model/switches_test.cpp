// Every switch and shape against a plain fp64 model: loss directly, gradients by finite differences
// of the fp64 loss along random directions, tensor by tensor.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "framework/model/gpt.h"
#include "tests/unit/framework/model/tiny_model.h"
#include "tests/unit/support/reference_gpt.h"

namespace heddle {
namespace {

using heddle::testing::random_params;
using heddle::testing::random_tokens;
using heddle::testing::ReferenceGpt;
using heddle::testing::TestModel;
using heddle::testing::tiny_config;

struct Variant {
  const char* name;
  std::function<void(ModelConfig&)> change;
};

void plain(ModelConfig& c) {
  c.smear = c.backout = c.value_embeds = c.resid_lambdas = c.x0_lambdas = c.qk_norm = false;
  c.qk_scale = 1.0;
  c.softcap = 0.0;
}

const Variant kVariants[] = {
    {"Nanochat", [](ModelConfig&) {}},
    {"NoSmear", [](ModelConfig& c) { c.smear = false; }},
    {"NoBackout", [](ModelConfig& c) { c.backout = false; }},
    {"NoValueEmbeds", [](ModelConfig& c) { c.value_embeds = false; }},
    {"NoResid", [](ModelConfig& c) { c.resid_lambdas = false; }},
    {"NoX0", [](ModelConfig& c) { c.x0_lambdas = false; }},
    {"NoLambdas", [](ModelConfig& c) { c.resid_lambdas = c.x0_lambdas = false; }},
    {"NoQkNorm", [](ModelConfig& c) { c.qk_norm = false; }},
    {"NoSoftcap", [](ModelConfig& c) { c.softcap = 0.0; }},
    {"OtherNumbers",
     [](ModelConfig& c) {
       c.softcap = 3.0;
       c.qk_scale = 0.7;
       c.rope_base = 50.0;
     }},
    {"Plain", plain},
    {"OneLayer",
     [](ModelConfig& c) {
       c.n_layer = 1;
       c.window_pattern.windows = {3};
     }},
    {"TwoLayers",
     [](ModelConfig& c) {
       c.n_layer = 2;
       c.window_pattern.windows = {3};
     }},
    {"OneLayerNoResid",
     [](ModelConfig& c) {
       c.n_layer = 1;
       c.window_pattern.windows = {0};
       c.resid_lambdas = false;
     }},
    {"FourLayersNoResid",
     [](ModelConfig& c) {
       c.n_layer = 4;
       c.window_pattern.windows = {-1};
       c.resid_lambdas = false;
     }},
    {"OneKvHead", [](ModelConfig& c) { c.n_kv_head = 1; }},
};

class Switches : public ::testing::TestWithParam<Variant> {};

TEST_P(Switches, LossAndGradients) {
  ModelConfig config = tiny_config();
  GetParam().change(config);
  const ModelSpec spec = resolve_model(config, 0);
  const int64_t batch = 2;
  TestModel model(spec, batch, spec.sequence_len, true);
  const ParamLayout& layout = model.gpt.layout();
  heddle::testing::load_random(model);
  const std::vector<float> flat = random_params(layout);
  const std::vector<double> params(flat.begin(), flat.end());
  const auto tokens = random_tokens(batch * spec.sequence_len, spec.vocab_size);
  auto targets = random_tokens(batch * spec.sequence_len, spec.vocab_size, 4);
  targets[3] = targets[10] = -1;

  const LossSum sum = model.gpt.forward_backward(tokens.data(), targets.data(), batch);
  ReferenceGpt reference(spec, layout);
  const double loss = reference.loss(params, tokens, targets, batch);
  EXPECT_EQ(sum.tokens, batch * spec.sequence_len - 2);
  EXPECT_NEAR(sum.nats, loss, 2e-6 * loss);

  for (const ParamInfo& info : layout.params()) {
    const std::vector<float> grad = model.gradient(info);
    double norm = 0.0;
    for (const float g : grad) norm += static_cast<double>(g) * g;
    norm = std::sqrt(norm);
    Rng rng(11, info.name);
    for (int repeat = 0; repeat < 2; ++repeat) {
      constexpr double kStep = 1e-5;
      std::vector<double> up = params, down = params;
      double slope = 0.0;
      for (int64_t i = 0; i < info.size(); ++i) {
        const auto place = static_cast<size_t>(info.offset + i);
        const double direction = static_cast<double>(rng.normal());
        up[place] += kStep * direction;
        down[place] -= kStep * direction;
        slope += direction * static_cast<double>(grad[static_cast<size_t>(i)]);
      }
      const double difference = (reference.loss(up, tokens, targets, batch) -
                                 reference.loss(down, tokens, targets, batch)) /
                                (2.0 * kStep);
      // A gradient that is 0 in exact arithmetic (backout of the last layer) is left with rounding.
      EXPECT_NEAR(slope, difference, 1e-4 * norm + 1e-5) << info.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Switches, ::testing::ValuesIn(kVariants),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace heddle
