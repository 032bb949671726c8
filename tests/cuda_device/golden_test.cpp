// The golden data of tests/golden/ on a CUDA device: attention problems on the plugin cuda_flash,
// whole models on the device. tools/gpu_check.sh runs it on a GPU, ctest on the emulated device;
// the device and the plugin are found as heddle finds them.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/attention/catalog.h"
#include "framework/attention/selection.h"
#include "framework/cli/plugin_device.h"
#include "framework/device/make_device.h"
#include "plugins/conformance/call.h"
#include "plugins/conformance/dtype.h"
#include "plugins/conformance/rules.h"
#include "tests/unit/support/golden.h"
#include "tests/unit/support/golden_attention.h"

namespace heddle::testing {
namespace {

using conformance::Arrays;

std::string plugin_path(const std::string& name) {
  for (const PluginCandidate& c : make_plugin_catalog({}).plugins) {
    if (c.display_name() == name) return c.file.path;
  }
  throw std::runtime_error("no plugin " + name + " is found; HEDDLE_PLUGIN_PATH names folders");
}

// ---- attention ----

conformance::Case case_of(const GoldenAttention& g, uint32_t op, uint32_t dtype) {
  conformance::Case c;
  c.op = op;
  c.batch = g.batch, c.q_len = g.q_len, c.k_len = g.k_len;
  c.n_head = g.n_head, c.n_kv_head = g.n_kv_head, c.head_dim = g.head_dim;
  c.window_left = g.window_left, c.q_pos0 = g.q_pos0, c.k_pos0 = g.k_pos0;
  c.scale = g.scale;
  c.dtype = dtype;
  c.align = 16;
  return c;
}

class CudaGoldenAttention : public ::testing::TestWithParam<uint32_t> {
 protected:
  std::unique_ptr<Device> device_ = make_device({.kind = "cuda", .precision = "bf16"}, 0);
  DeviceMemory memory_{*device_};
  conformance::Session session_{PluginLibrary::load(plugin_path("cuda_flash")).table(),
                                {},
                                {plugin_device(*device_), &memory_, device_->stream()},
                                GetParam()};

  std::vector<float> rounded(std::vector<float> values) const {
    for (float& v : values) v = conformance::rounded(GetParam(), v);
    return values;
  }

  // In fp32 the README's gate. Else at most twice the error of an exact computation on rounded
  // inputs whose results are rounded, and the rounding of terms that cancel.
  void expect_near(const char* name, const std::vector<float>& got,
                   const std::vector<double>& exact, const std::vector<float>& golden) const {
    if (GetParam() == HEDDLE_DTYPE_F32) return expect_golden(name, got, golden);
    ASSERT_EQ(got.size(), golden.size()) << name;
    const double unit = GetParam() == HEDDLE_DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    double error = 0.0, allowed = 0.0;
    for (size_t i = 0; i < golden.size(); ++i) {
      const double want = golden[i];
      const double best = conformance::rounded(GetParam(), static_cast<float>(exact[i]));
      error += (got[i] - want) * (got[i] - want);
      allowed += (best - want) * (best - want);
    }
    const double floor = 0.2 * unit * std::sqrt(static_cast<double>(golden.size()));
    EXPECT_LE(std::sqrt(error), 2.0 * std::sqrt(allowed) + floor) << name;
  }

  // False when query() refuses it.
  bool check(const GoldenAttention& g) {
    Arrays in;
    in.q = rounded(g.q), in.k = rounded(g.k), in.v = rounded(g.v);
    conformance::Case c = case_of(g, HEDDLE_OP_FORWARD, GetParam());
    const conformance::CallResult forward = call_plugin(session_, c, in);
    if (!forward.refusal.empty()) return false;
    EXPECT_EQ(forward.trouble, "");
    const conformance::Exact attended = exact_results(c, in);
    expect_near("out", forward.got.out, attended.out, g.out);
    if (GetParam() == HEDDLE_DTYPE_F32) expect_golden_lse(forward.got.lse, g.lse);

    c.op = HEDDLE_OP_BACKWARD;
    in.dout = rounded(g.dout);
    in.out = forward.got.out, in.lse = forward.got.lse;
    const conformance::CallResult backward = call_plugin(session_, c, in);
    if (!backward.refusal.empty()) return true;
    EXPECT_EQ(backward.trouble, "");
    const conformance::Exact gradients = exact_results(c, in);
    expect_near("dq", backward.got.dq, gradients.dq, g.dq);
    expect_near("dk", backward.got.dk, gradients.dk, g.dk);
    expect_near("dv", backward.got.dv, gradients.dv, g.dv);
    return true;
  }
};

TEST_P(CudaGoldenAttention, OfTheNumbers) {
  int checked = 0;
  for (const GoldenAttention& g : load_golden_attention()) {
    SCOPED_TRACE(g.name);
    checked += check(g) ? 1 : 0;
  }
  EXPECT_GE(checked, 8);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaGoldenAttention,
                         ::testing::Values(HEDDLE_DTYPE_F32, HEDDLE_DTYPE_BF16, HEDDLE_DTYPE_F16),
                         [](const auto& test) { return conformance::dtype_name(test.param); });

// ---- models ----

struct ModelOnCuda {
  ModelOnCuda(const GoldenCase& golden, const std::string& precision)
      : device(make_device({.kind = "cuda", .precision = precision}, 0)),
        attention(AttentionHost::create(config(), *device)),
        spec(resolve_model(golden.config(), 0)),
        gpt(spec, *device, *attention, golden.batch(), spec.sequence_len, true) {
    for (const ParamInfo& info : gpt.layout().params()) {
      const auto& t = golden.tensors.tensor("param/" + info.name);
      device->upload(gpt.params() + info.offset, t.f32(), t.bytes);
    }
  }
  static AttentionConfig config() {
    AttentionConfig c;
    c.backend = "cuda_flash";
    return c;
  }
  double relative_error(const ParamInfo& info, const GoldenCase& golden, int64_t tokens) const {
    std::vector<float> grad(static_cast<size_t>(info.size()));
    device->download(grad.data(), gpt.grads() + info.offset, grad.size() * sizeof(float));
    for (float& g : grad) g /= static_cast<float>(tokens);
    return relative_l2(grad.data(), golden.tensors.tensor("grad/" + info.name).f32(), info.size());
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<AttentionHost> attention;
  ModelSpec spec;
  Gpt gpt;
};

class CudaGoldenModel : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaGoldenModel, LossAndGradientsInFp32) {
  const GoldenCase golden(GetParam());
  ModelOnCuda model(golden, "fp32");
  const LossSum sum = model.gpt.forward_backward(golden.ints("tokens").data(),
                                                 golden.ints("targets").data(), golden.batch());
  const double loss = golden.value("loss");
  EXPECT_NEAR(sum.nats / static_cast<double>(sum.tokens), loss, 5e-6 * loss);
  for (const ParamInfo& info : model.gpt.layout().params()) {
    if (info.kind == ParamKind::kBackoutLambda && std::string(GetParam()) == "l_mha")
      continue;  // 0
    EXPECT_LE(model.relative_error(info, golden, sum.tokens), golden.gate("grad/" + info.name))
        << info.name;
  }
}

// Every rounding to bf16 has a relative error of at most 2^-9; some ten of them lie on the way to a
// gradient, in random directions, and more where layers are. Small tensors are sums that cancel.
TEST_P(CudaGoldenModel, LossAndGradientsInBf16) {
  const GoldenCase golden(GetParam());
  ModelOnCuda model(golden, "bf16");
  const LossSum sum = model.gpt.forward_backward(golden.ints("tokens").data(),
                                                 golden.ints("targets").data(), golden.batch());
  const double loss = golden.value("loss");
  EXPECT_NEAR(sum.nats / static_cast<double>(sum.tokens), loss, 1e-3 * loss);
  for (const ParamInfo& info : model.gpt.layout().params()) {
    if (info.size() < 100) continue;
    EXPECT_LE(model.relative_error(info, golden, sum.tokens), 3e-2) << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGoldenModel, ::testing::Values("sssl_gqa", "l_mha", "sl_mqa"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace heddle::testing
