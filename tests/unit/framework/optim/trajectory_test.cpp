// 24 optimizer steps of the whole model against the golden trajectory (tests/golden/README.md).
#include <gtest/gtest.h>

#include <cmath>

#include "framework/optim/optimizer.h"
#include "tests/unit/support/golden.h"

namespace heddle {
namespace {

using testing::golden_optim;
using testing::golden_path;
using testing::GoldenCase;
using testing::relative_l2;
using testing::TestModel;

class Trajectory {
 public:
  Trajectory()
      : golden_("sssl_gqa"),
        tensors_(golden_path("trajectory.safetensors")),
        info_(json::read_file(golden_path("golden.json")).at("trajectory")),
        spec_(resolve_model(golden_.config(), 0)),
        batch_(golden_.batch()),
        model_(spec_, batch_, spec_.sequence_len, true),
        micro_(info_.at("config").at("micro").as_int64()),
        steps_(info_.at("config").at("steps").as_int64()),
        optimizer_(golden_optim(info_.at("config")), model_.gpt.layout(), steps_,
                   micro_ * batch_ * spec_.sequence_len, *model_.host.device) {
    model_.load(golden_);
  }

  void run() {
    for (int64_t it = 0; it < steps_; ++it) {
      step(it);
      if (it == 0) expect_params("after_1/", 1e-5);
    }
    expect_params("after_" + std::to_string(steps_) + "/", 2e-3);
  }

 private:
  double value(const char* name, int64_t it) const {
    return info_.at("values").at(name).as_array().at(static_cast<size_t>(it)).to_number<double>();
  }

  void step(int64_t it) {
    const int64_t n = batch_ * spec_.sequence_len;
    const auto* ids = static_cast<const int32_t*>(tensors_.tensor("tokens").data);
    LossSum sum;
    model_.gpt.zero_grads();
    for (int64_t micro = it * micro_; micro < (it + 1) * micro_; ++micro) {
      const int32_t* inputs = ids + micro * (n + 1);
      const LossSum part = model_.gpt.forward_backward(inputs, inputs + 1, batch_);
      sum.nats += part.nats;
      sum.tokens += part.tokens;
    }
    const double loss = sum.nats / static_cast<double>(sum.tokens);
    EXPECT_NEAR(loss, value("loss", it), 2e-4 * value("loss", it)) << "step " << it;

    const float scale = 1.0f / static_cast<float>(sum.tokens);
    const double norm =
        std::sqrt(model_.host.device->ops().sum_squares(model_.gpt.grads(),
                                                        model_.gpt.layout().total())) *
        static_cast<double>(scale);
    // The first norm is that of equal parameters; later ones differ as much as the parameters do.
    const double tolerance = it == 0 ? 1e-5 : 5e-3;
    EXPECT_NEAR(norm, value("grad_norm", it), tolerance * value("grad_norm", it)) << "step " << it;
    optimizer_.step(it, model_.gpt.params(), model_.gpt.grads(), scale);
  }

  void expect_params(const std::string& prefix, double gate) {
    for (const ParamInfo& p : model_.gpt.layout().params()) {
      std::vector<float> got(static_cast<size_t>(p.size()));
      model_.host.device->download(got.data(), model_.gpt.params() + p.offset,
                                   got.size() * sizeof(float));
      const float* want = tensors_.tensor(prefix + p.name).f32();
      EXPECT_LE(relative_l2(got.data(), want, p.size()), gate) << prefix << p.name;
    }
  }

  GoldenCase golden_;
  SafetensorsFile tensors_;
  json::value info_;
  ModelSpec spec_;
  int64_t batch_;
  TestModel model_;
  int64_t micro_, steps_;
  Optimizer optimizer_;
};

TEST(GoldenTrajectory, TwentyFourSteps) {
  Trajectory().run();
}

}  // namespace
}  // namespace heddle
