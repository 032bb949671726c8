// The whole model on the emulated device against the golden data of tests/golden/: fp32 within the
// gates of the CPU, bf16 within what rounding explains.
#include <cuda_emulator.h>
#include <gtest/gtest.h>

#include <cmath>

#include "framework/model/gpt.h"
#include "tests/cuda_emulator/emulated_device.h"
#include "tests/unit/support/golden.h"

namespace heddle::testing {
namespace {

struct CudaModel {
  CudaModel(const GoldenCase& golden, const std::string& precision, bool training = true)
      : host(precision),
        spec(resolve_model(golden.config(), 0)),
        gpt(spec, *host.device, *host.attention, golden.batch(), spec.sequence_len, training) {
    for (const ParamInfo& info : gpt.layout().params()) {
      const auto& t = golden.tensors.tensor("param/" + info.name);
      host.device->upload(gpt.params() + info.offset, t.f32(), t.bytes);
    }
  }
  std::vector<float> gradient(const ParamInfo& info, int64_t tokens) const {
    std::vector<float> out(static_cast<size_t>(info.size()));
    host.device->download(out.data(), gpt.grads() + info.offset, out.size() * sizeof(float));
    for (float& g : out) g /= static_cast<float>(tokens);
    return out;
  }
  EmulatedHost host;
  ModelSpec spec;
  Gpt gpt;
};

class CudaGolden : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, CudaGolden, ::testing::Values("sssl_gqa", "l_mha", "sl_mqa"),
                         [](const auto& model) { return std::string(model.param); });

TEST_P(CudaGolden, LossAndGradientsInFp32) {
  const GoldenCase golden(GetParam());
  const std::vector<int32_t> tokens = golden.ints("tokens"), targets = golden.ints("targets");
  CudaModel model(golden, "fp32");
  const LossSum sum = model.gpt.forward_backward(tokens.data(), targets.data(), golden.batch());
  const double loss = golden.value("loss");
  EXPECT_NEAR(sum.nats / static_cast<double>(sum.tokens), loss, 5e-6 * loss);
  for (const ParamInfo& info : model.gpt.layout().params()) {
    const std::vector<float> grad = model.gradient(info, sum.tokens);
    const float* want = golden.tensors.tensor("grad/" + info.name).f32();
    if (info.kind == ParamKind::kBackoutLambda && std::string(GetParam()) == "l_mha") {
      EXPECT_NEAR(grad[0], want[0], 1e-6);  // 0 up to rounding, see tests/golden/README.md
      continue;
    }
    EXPECT_LE(relative_l2(grad.data(), want, info.size()), golden.gate("grad/" + info.name))
        << info.name;
  }
}

// Rounding to bf16 has a relative error of at most 2^-8 and of 2^-9 on average; some ten of them lie
// on the way to a gradient, in random directions.
TEST(CudaModel, LossAndGradientsInBf16AndASteadyPass) {
  const GoldenCase golden("l_mha");  // head_dim 32
  const std::vector<int32_t> tokens = golden.ints("tokens"), targets = golden.ints("targets");
  CudaModel model(golden, "bf16");
  const LossSum sum = model.gpt.forward_backward(tokens.data(), targets.data(), golden.batch());
  const double loss = golden.value("loss");
  EXPECT_NEAR(sum.nats / static_cast<double>(sum.tokens), loss, 1e-3 * loss);
  for (const ParamInfo& info : model.gpt.layout().params()) {
    if (info.size() < 100) continue;  // sums that cancel
    const std::vector<float> grad = model.gradient(info, sum.tokens);
    const float* want = golden.tensors.tensor("grad/" + info.name).f32();
    const double error = relative_l2(grad.data(), want, info.size());
    EXPECT_LE(error, 3e-2) << info.name;
    EXPECT_GT(error, golden.gate("grad/" + info.name)) << info.name << " is not of bf16";
  }

  // A steady pass waits for the device only where the host reads, and allocates nothing.
  emulator::reset_counters();
  model.gpt.forward_backward(tokens.data(), targets.data(), golden.batch());
  EXPECT_EQ(emulator::counters().synchronisations, 1);  // the losses
  EXPECT_EQ(emulator::counters().allocations, 0);
}

}  // namespace
}  // namespace heddle::testing
