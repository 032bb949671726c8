#include "framework/model/params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "tests/unit/support/golden.h"

namespace heddle {
namespace {

ModelSpec small_spec() {
  ModelConfig c;
  c.n_layer = 3;
  c.n_head = 4;
  c.n_kv_head = 1;
  c.n_embd = 48;
  c.sequence_len = 128;
  return resolve_model(c, 131);
}

std::vector<float> init(const ModelSpec& spec, const std::string& name, uint64_t seed = 1) {
  const ParamLayout layout(spec);
  const ParamInfo& info = layout.at(name);
  std::vector<float> out(static_cast<size_t>(info.size()));
  init_param(spec, info, seed, out.data());
  return out;
}

struct Moments {
  double mean, deviation, min, max;
};
Moments moments(const std::vector<float>& x) {
  double sum = 0, squares = 0, low = x[0], high = x[0];
  for (const float v : x) {
    sum += v;
    squares += static_cast<double>(v) * v;
    low = std::min<double>(low, v);
    high = std::max<double>(high, v);
  }
  const double n = static_cast<double>(x.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean), low, high};
}

class GoldenParams : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenParams, NamesAndShapesAreThoseOfTheCheckpoint) {
  const heddle::testing::GoldenCase golden(GetParam());
  const ParamLayout layout(resolve_model(golden.config(), 0));
  std::set<std::string> names;
  for (const ParamInfo& info : layout.params()) {
    names.insert("param/" + info.name);
    EXPECT_EQ(golden.tensors.tensor("param/" + info.name).shape, info.shape) << info.name;
  }
  for (const auto& [name, tensor] : golden.tensors.tensors()) {
    EXPECT_TRUE(!name.starts_with("param/") || names.contains(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenParams, ::testing::Values("sssl_gqa", "l_mha", "sl_mqa"));

TEST(Params, OffsetsAreAlignedAndProjectionsAdjacent) {
  const ModelSpec spec = small_spec();
  const ParamLayout layout(spec);
  int64_t end = 0;
  for (const ParamInfo& info : layout.params()) {
    EXPECT_GE(info.offset, end) << info.name;
    const bool joined = info.name.ends_with("c_k.weight") || info.name.ends_with("c_v.weight");
    if (joined) {
      EXPECT_EQ(info.offset, end) << info.name;
    } else {
      EXPECT_EQ(info.offset % 16, 0) << info.name;
    }
    end = info.offset + info.size();
  }
  EXPECT_GE(layout.total(), end);
  EXPECT_LT(layout.total(), end + 16);

  std::vector<float> flat(static_cast<size_t>(layout.total()));
  const ModelParams view = view_params(spec, layout, flat.data());
  EXPECT_EQ(view.blocks[1].qkv.rows, 48 + 2 * 12);
  EXPECT_EQ(view.blocks[1].qkv.row_range(48, 12).f32(), view.blocks[1].k.f32());
  EXPECT_EQ(view.blocks[1].qkv.row_range(60, 12).f32(), view.blocks[1].v.f32());
}

TEST(Params, SwitchedOffParametersDoNotExist) {
  ModelConfig c;
  c.n_embd = 32;
  c.n_layer = 2;
  c.smear = c.backout = c.value_embeds = c.resid_lambdas = c.x0_lambdas = false;
  const ModelSpec spec = resolve_model(c, 100);
  const ParamLayout layout(spec);
  EXPECT_EQ(layout.params().size(), 2u + 2u * 6u);
  EXPECT_EQ(count_params(layout).scalars, 0);
  EXPECT_THROW(layout.at("smear_lambda"), Error);
  std::vector<float> flat(static_cast<size_t>(layout.total()));
  const ModelParams view = view_params(spec, layout, flat.data());
  EXPECT_EQ(view.smear_gate, nullptr);
  EXPECT_EQ(view.backout_lambda, nullptr);
  EXPECT_EQ(view.blocks[0].resid, nullptr);
  EXPECT_EQ(view.blocks[1].ve_gate, nullptr);
  EXPECT_TRUE(view.blocks[1].value_embed.empty());
}

TEST(Params, InitialValues) {
  const ModelSpec spec = small_spec();
  const double bound = std::sqrt(3.0 / 48.0);
  const Moments wte = moments(init(spec, "transformer.wte.weight"));
  EXPECT_NEAR(wte.mean, 0.0, 0.03);
  EXPECT_NEAR(wte.deviation, 0.8, 0.03);
  EXPECT_NEAR(moments(init(spec, "lm_head.weight")).deviation, 0.001, 5e-5);
  for (const char* name : {"transformer.h.0.attn.c_q.weight", "value_embeds.2.weight"}) {
    const Moments m = moments(init(spec, name));
    EXPECT_NEAR(m.mean, 0.0, 0.02) << name;
    EXPECT_NEAR(m.deviation, bound / std::sqrt(3.0), 0.01) << name;
    EXPECT_LE(std::max(-m.min, m.max), bound) << name;
    EXPECT_GT(std::min(-m.min, m.max), 0.98 * bound) << name;
  }
  const Moments fc = moments(init(spec, "transformer.h.1.mlp.c_fc.weight"));
  EXPECT_LE(std::max(-fc.min, fc.max), 0.4 * bound + 1e-7);
  EXPECT_GT(std::min(-fc.min, fc.max), 0.39 * bound);
  for (const char* name : {"transformer.h.2.attn.ve_gate.weight", "smear_gate.weight"}) {
    const Moments m = moments(init(spec, name));
    EXPECT_GE(m.min, 0.0) << name;
    EXPECT_LT(m.max, 0.02) << name;
    EXPECT_GT(m.max, 0.01) << name;
  }
  for (const char* name : {"transformer.h.0.attn.c_proj.weight",
                           "transformer.h.0.mlp.c_proj.weight", "smear_lambda"}) {
    const Moments m = moments(init(spec, name));
    EXPECT_EQ(m.min, 0.0) << name;
    EXPECT_EQ(m.max, 0.0) << name;
  }
  EXPECT_EQ(init(spec, "resid_lambdas"), (std::vector<float>{1.15f, 1.10f, 1.05f}));
  const auto x0 = init(spec, "x0_lambdas");
  EXPECT_FLOAT_EQ(x0[0], 0.20f);
  EXPECT_FLOAT_EQ(x0[1], 0.125f);
  EXPECT_FLOAT_EQ(x0[2], 0.05f);
  EXPECT_EQ(init(spec, "backout_lambda"), std::vector<float>{0.2f});
}

TEST(Params, InitialValuesDependOnSeedAndNameOnly) {
  const ModelSpec spec = small_spec();
  const std::string name = "transformer.wte.weight";
  const int before = num_threads();
  set_num_threads(1);
  const auto one = init(spec, name);
  set_num_threads(3);
  const auto three = init(spec, name);
  set_num_threads(before);
  EXPECT_EQ(one, three);
  EXPECT_NE(one, init(spec, name, 2));
  EXPECT_NE(init(spec, "transformer.h.0.attn.c_q.weight"),
            init(spec, "transformer.h.1.attn.c_q.weight"));
}

}  // namespace
}  // namespace heddle
