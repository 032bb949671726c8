#include "framework/optim/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace heddle {
namespace {

ModelSpec small_spec() {
  ModelConfig c;
  c.n_layer = 4;
  c.n_head = 4;
  c.n_kv_head = 2;
  c.n_embd = 192;
  c.sequence_len = 64;
  c.vocab_size = 260;
  return resolve_model(c, 0);
}

std::map<std::string, AdamWTask> by_name(const OptimPlan& plan) {
  std::map<std::string, AdamWTask> tasks;
  for (const AdamWTask& task : plan.adamw) tasks[task.param.name] = task;
  return tasks;
}

void expect_group(const AdamWTask& task, double lr, double beta1, double beta2, double decay) {
  EXPECT_NEAR(task.group.lr, lr, 1e-15) << task.param.name;
  EXPECT_EQ(task.group.beta1, beta1) << task.param.name;
  EXPECT_EQ(task.group.beta2, beta2) << task.param.name;
  EXPECT_EQ(task.group.eps, 1e-10) << task.param.name;
  EXPECT_EQ(task.group.weight_decay, decay) << task.param.name;
}

TEST(Plan, NanochatGroups) {
  const ParamLayout layout(small_spec());
  const OptimPlan plan = plan_optimizer(OptimConfig{}, layout, 2048);
  const auto adamw = by_name(plan);
  // Width 192: (192 / 768)^-1/2 = 2.
  expect_group(adamw.at("lm_head.weight"), 0.016, 0.8, 0.96, 0.01);
  expect_group(adamw.at("transformer.wte.weight"), 0.6, 0.8, 0.995, 0.001);
  expect_group(adamw.at("value_embeds.1.weight"), 0.3, 0.8, 0.995, 0.01);
  expect_group(adamw.at("value_embeds.3.weight"), 0.3, 0.8, 0.995, 0.01);
  expect_group(adamw.at("resid_lambdas"), 0.005, 0.8, 0.95, 0.05);
  expect_group(adamw.at("x0_lambdas"), 0.5, 0.96, 0.95, 0.0);
  expect_group(adamw.at("smear_gate.weight"), 0.2, 0.8, 0.95, 0.0);
  expect_group(adamw.at("smear_lambda"), 0.2, 0.8, 0.95, 0.0);
  expect_group(adamw.at("backout_lambda"), 0.2, 0.8, 0.95, 0.0);
  EXPECT_EQ(adamw.size(), 9u);
}

TEST(Plan, MuonTakesEveryBlockMatrixHeaviestFirst) {
  const ParamLayout layout(small_spec());
  const OptimPlan plan = plan_optimizer(OptimConfig{}, layout, 2048);
  EXPECT_EQ(plan.muon.size(), 4u * 6 + 2);  // q, k, v, proj, fc, mlp; two value gates
  for (size_t i = 1; i < plan.muon.size(); ++i) {
    EXPECT_GE(plan.muon[i - 1].cost(), plan.muon[i].cost());
  }
  EXPECT_EQ(plan.muon.back().param.rows, 2);  // a gate
  for (const MuonTask& task : plan.muon) {
    const double shape = static_cast<double>(task.param.rows) / task.param.cols;
    EXPECT_NEAR(task.lr, 0.02 * std::sqrt(std::max(1.0, shape)), 1e-15) << task.param.name;
    EXPECT_EQ(task.second_size(), std::max(task.param.rows, task.param.cols));
  }
  EXPECT_EQ(plan.matrix_scratch, 4 * 192 * 192);
  EXPECT_EQ(plan.gram_scratch, 192 * 192);
}

TEST(Plan, EveryParameterHasOneUpdateAndItsOwnState) {
  const ParamLayout layout(small_spec());
  for (const char* kind : {"muon", "adamw"}) {
    OptimConfig config;
    config.kind = kind;
    const OptimPlan plan = plan_optimizer(config, layout, 2048);
    EXPECT_EQ(plan.adamw.size() + plan.muon.size(), layout.params().size());
    std::vector<int> adamw(static_cast<size_t>(plan.adamw_size), 0);
    std::vector<int> momentum(static_cast<size_t>(plan.momentum_size), 0);
    std::vector<int> second(static_cast<size_t>(plan.second_size), 0);
    const auto mark = [](std::vector<int>* owners, int64_t offset, int64_t n) {
      for (int64_t i = offset; i < offset + n; ++i) ++owners->at(static_cast<size_t>(i));
    };
    for (const AdamWTask& task : plan.adamw) mark(&adamw, task.state, task.param.size());
    for (const MuonTask& task : plan.muon) {
      mark(&momentum, task.momentum, task.param.size());
      mark(&second, task.second, task.second_size());
    }
    for (const auto* owners : {&adamw, &momentum, &second}) {
      EXPECT_TRUE(std::all_of(owners->begin(), owners->end(), [](int n) { return n <= 1; }));
    }
    EXPECT_EQ(plan.state_bytes(),
              4 * (2 * plan.adamw_size + plan.momentum_size + plan.second_size));
  }
}

TEST(Plan, PlainAdamWDecaysMatricesOnly) {
  OptimConfig config;
  config.kind = "adamw";
  config.weight_decay = 0.1;
  const OptimPlan plan = plan_optimizer(config, ParamLayout(small_spec()), 2048);
  EXPECT_TRUE(plan.muon.empty());
  EXPECT_EQ(plan.momentum_size, 0);
  EXPECT_EQ(plan.scratch_bytes(8), 0);
  for (const AdamWTask& task : plan.adamw) {
    const ParamKind kind = task.param.kind;
    const bool matrix = kind == ParamKind::kMatrix || kind == ParamKind::kWte ||
                        kind == ParamKind::kLmHead || kind == ParamKind::kValueEmbed;
    EXPECT_EQ(task.group.weight_decay, matrix ? 0.1 : 0.0) << task.param.name;
    EXPECT_EQ(task.group.lr, 3e-3);
    EXPECT_EQ(task.group.beta1, 0.9);
    EXPECT_EQ(task.group.beta2, 0.95);
    EXPECT_EQ(task.group.eps, 1e-8);
  }
}

TEST(Plan, BatchScalingLeavesSmearAndBackoutAlone) {
  OptimConfig config;
  config.batch_scaling = true;
  const ParamLayout layout(small_spec());
  const auto plain = by_name(plan_optimizer(OptimConfig{}, layout, 1 << 17));
  const OptimPlan plan = plan_optimizer(config, layout, 1 << 17);  // a quarter of the reference
  for (const auto& [name, task] : by_name(plan)) {
    const bool fixed = name.starts_with("smear") || name.starts_with("backout");
    EXPECT_NEAR(task.group.lr, plain.at(name).group.lr * (fixed ? 1.0 : 0.5), 1e-15) << name;
    EXPECT_EQ(task.group.weight_decay, plain.at(name).group.weight_decay) << name;
  }
  EXPECT_NEAR(plan.muon.back().lr, 0.01, 1e-15);
}

TEST(Plan, BatchScalingOfDepthTwelveIsOneAtItsBatch) {
  ModelConfig c;  // nanochat --depth 12
  c.n_layer = 12;
  c.n_head = 6;
  c.n_embd = 768;
  c.sequence_len = 2048;
  c.vocab_size = 32768;
  OptimConfig config;
  config.batch_scaling = true;
  const OptimPlan plan = plan_optimizer(config, ParamLayout(resolve_model(c, 0)), 1 << 19);
  EXPECT_EQ(plan.weight_decay_scale, 1.0);
  EXPECT_EQ(plan.muon.back().lr, 0.02);
}

}  // namespace
}  // namespace heddle
