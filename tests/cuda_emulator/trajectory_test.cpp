// Training in bf16 on the emulated device beside fp32 trajectories, and that the tolerance which it
// keeps notices wrong attention: windows, scale, a missing term of a gradient.
//
// The tolerance is measured, not chosen. bf16 rounds four kinds of operands: weights, activations,
// what attention reads, and gradients. What the first kind does to the loss of a step is known from
// fp32 runs on the CPU whose weights were rounded before the first step, every weight on a grid of
// its own; the others are taken to do as much, and all to work in one direction. So a loss may be
// off by 4 times the root mean square over such runs.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "framework/core/rng.h"
#include "framework/optim/optimizer.h"
#include "tests/cuda_emulator/emulated_device.h"
#include "tests/unit/support/golden.h"

namespace heddle::testing {
namespace {

constexpr int64_t kSteps = 4;
constexpr double kKindsOfOperands = 4;
constexpr int kRoundedRuns = 8;

using Losses = std::vector<double>;

// What a trajectory starts from.
struct Recipe {
  ModelSpec spec;
  OptimConfig optim;
  int64_t iterations = 0;  // that the schedules refer to
  int64_t batch = 0, micro_steps = 0;
  std::vector<int32_t> tokens;  // micro-batch after micro-batch of batch * T + 1
  std::map<std::string, std::vector<float>> weights;

  int64_t micro_tokens() const { return batch * spec.sequence_len; }
};

const json::value& golden_trajectory() {
  static const json::value info = json::read_file(golden_path("golden.json")).at("trajectory");
  return info;
}

std::vector<int32_t> golden_tokens() {
  const SafetensorsFile file(golden_path("trajectory.safetensors"));
  const auto& t = file.tensor("tokens");
  const auto* ids = static_cast<const int32_t*>(t.data);
  return {ids, ids + t.numel()};
}

// tests/golden/README.md, "trajectory".
Recipe golden_recipe() {
  const GoldenCase golden("sssl_gqa");
  const json::value& config = golden_trajectory().at("config");
  Recipe r;
  r.spec = resolve_model(golden.config(), 0);
  r.optim = golden_optim(config);
  r.iterations = config.at("steps").as_int64();
  r.batch = golden.batch();
  r.micro_steps = config.at("micro").as_int64();
  r.tokens = golden_tokens();
  const ParamLayout layout(r.spec);
  for (const ParamInfo& p : layout.params()) {
    const auto& t = golden.tensors.tensor("param/" + p.name);
    r.weights[p.name].assign(t.f32(), t.f32() + t.numel());
  }
  return r;
}

// sl_mqa with a head_dim that tensor cores take, its other sizes as they are. Projections begin as
// zeros in nanochat; here they do not, so that attention counts from the first step.
Recipe small_recipe() {
  const GoldenCase golden("sl_mqa");
  ModelConfig config = golden.config();
  config.n_embd = 64;  // D 16
  Recipe r;
  r.spec = resolve_model(config, 0);
  r.optim = golden_optim(golden_trajectory().at("config"));
  r.iterations = golden_trajectory().at("config").at("steps").as_int64();
  r.batch = 1;
  r.micro_steps = 1;
  r.tokens = golden_tokens();
  for (int32_t& id : r.tokens) id %= static_cast<int32_t>(r.spec.vocab_size);
  const ParamLayout layout(r.spec);
  for (const ParamInfo& p : layout.params()) {
    Rng rng(5, p.name);
    std::vector<float>& w = r.weights[p.name];
    for (int64_t i = 0; i < p.size(); ++i) {
      w.push_back(p.cols > 1 ? 0.3f * rng.normal() / std::sqrt(static_cast<float>(p.cols)) : 0.5f);
    }
  }
  return r;
}

// Every weight rounded to bf16 on a grid of its own, so that each is off by what rounding makes of
// a number whose mantissa could be any.
Recipe rounded(Recipe r, uint64_t seed) {
  for (auto& [name, weights] : r.weights) {
    Rng rng(seed, name);
    for (float& w : weights) {
      const float grid = 1.0f + rng.uniform();
      w = __bfloat162float(__float2bfloat16_rn(w * grid)) / grid;
    }
  }
  return r;
}

class Training {
 public:
  Training(const Recipe& recipe, Device& device, AttentionHost& attention)
      : recipe_(recipe),
        device_(device),
        gpt_(recipe.spec, device, attention, recipe.batch, recipe.spec.sequence_len, true),
        optimizer_(recipe.optim, gpt_.layout(), recipe.iterations,
                   recipe.micro_steps * recipe.micro_tokens(), device) {
    for (const ParamInfo& p : gpt_.layout().params()) {
      const std::vector<float>& w = recipe.weights.at(p.name);
      device.upload(gpt_.params() + p.offset, w.data(), w.size() * sizeof(float));
    }
  }

  // The mean loss of a step, before its update.
  double loss(int64_t it) {
    return mean(it, [&](const int32_t* ids) { return gpt_.evaluate(ids, ids + 1, recipe_.batch); });
  }
  double step(int64_t it) {
    gpt_.zero_grads();
    int64_t tokens = 0;
    const double loss = mean(it, [&](const int32_t* ids) {
      const LossSum sum = gpt_.forward_backward(ids, ids + 1, recipe_.batch);
      tokens += sum.tokens;
      return sum;
    });
    optimizer_.step(it, gpt_.params(), gpt_.grads(), 1.0f / static_cast<float>(tokens));
    return loss;
  }

 private:
  double mean(int64_t it, const std::function<LossSum(const int32_t*)>& body) {
    LossSum all;
    for (int64_t micro = it * recipe_.micro_steps; micro < (it + 1) * recipe_.micro_steps;
         ++micro) {
      const LossSum sum = body(recipe_.tokens.data() + micro * (recipe_.micro_tokens() + 1));
      all.nats += sum.nats;
      all.tokens += sum.tokens;
    }
    return all.nats / static_cast<double>(all.tokens);
  }

  const Recipe& recipe_;
  Device& device_;
  Gpt gpt_;
  Optimizer optimizer_;
};

Losses cpu_losses(const Recipe& recipe) {
  CpuHost host;
  Training run(recipe, *host.device, *host.attention);
  Losses losses;
  for (int64_t it = 0; it < kSteps; ++it) losses.push_back(run.step(it));
  return losses;
}

Losses golden_losses() {
  Losses losses;
  for (int64_t it = 0; it < kSteps; ++it) {
    losses.push_back(golden_trajectory()
                         .at("values")
                         .at("loss")
                         .as_array()
                         .at(static_cast<size_t>(it))
                         .to_number<double>());
  }
  return losses;
}

Losses tolerances(const Recipe& recipe, const Losses& want) {
  Losses squares(want.size());
  for (uint64_t seed = 0; seed < kRoundedRuns; ++seed) {
    const Losses moved = cpu_losses(rounded(recipe, seed));
    for (size_t i = 0; i < want.size(); ++i) squares[i] += std::pow(moved[i] - want[i], 2.0);
  }
  for (double& s : squares) s = kKindsOfOperands * std::sqrt(s / kRoundedRuns);
  return squares;
}

struct MutantHost {
  MutantHost() : device(emulated_device("bf16")) {
    AttentionConfig config;
    config.backend = "cuda_flash_mutant";
    config.plugin_path = {HEDDLE_EMULATED "/mutants"};
    attention = AttentionHost::create(config, *device);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<AttentionHost> attention;
};

void expect_follows(const Recipe& recipe, const Losses& want) {
  const Losses tolerance = tolerances(recipe, want);
  EmulatedHost host("bf16");
  Training run(recipe, *host.device, *host.attention);
  for (int64_t it = 0; it < kSteps; ++it) {
    const auto i = static_cast<size_t>(it);
    const double loss = run.step(it);
    ::testing::Test::RecordProperty("step_" + std::to_string(it),
                                    std::to_string((loss - want[i]) / tolerance[i]));
    EXPECT_NEAR(loss, want[i], tolerance[i]) << "step " << it;
    EXPECT_NE(loss, want[i]) << "step " << it << " is not of bf16";
  }
}

TEST(CudaTrajectoryShort, SlMqaLikeFollowsFp32) {
  const Recipe recipe = small_recipe();
  expect_follows(recipe, cpu_losses(recipe));
}

TEST(CudaTrajectory, GoldenLossesInBf16) {
  expect_follows(golden_recipe(), golden_losses());
}

// A mistake of the plugin, and the first step whose loss knows of it.
struct Mutant {
  const char* name;
  int64_t step;
};

class CudaMutant : public ::testing::TestWithParam<Mutant> {
 protected:
  ~CudaMutant() override { unsetenv("HEDDLE_MUTANT"); }
};
INSTANTIATE_TEST_SUITE_P(Mistakes, CudaMutant,
                         ::testing::Values(Mutant{"window", 0}, Mutant{"scale", 0},
                                           Mutant{"dv", 1}),
                         [](const auto& mutant) { return std::string(mutant.param.name); });

TEST_P(CudaMutant, IsNotTolerated) {
  const Recipe recipe = golden_recipe();
  const Losses want = golden_losses(), tolerance = tolerances(recipe, want);
  MutantHost host;  // the probe sees the plugin as it is
  setenv("HEDDLE_MUTANT", GetParam().name, 1);
  Training run(recipe, *host.device, *host.attention);
  const int64_t seen = GetParam().step;
  for (int64_t it = 0; it < seen; ++it) run.step(it);
  const auto i = static_cast<size_t>(seen);
  const double difference = std::abs(run.loss(seen) - want[i]);
  RecordProperty("tolerances", std::to_string(difference / tolerance[i]));
  EXPECT_GT(difference, tolerance[i]);
}

}  // namespace
}  // namespace heddle::testing
