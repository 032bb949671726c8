// Small checkpoints whose every value follows from step and variant, so that what comes back can be
// checked to the bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "framework/checkpoint/checkpoint.h"
#include "framework/comm/self/self_communicator.h"

namespace heddle::testing {

// A job of one rank.
inline Communicator& alone() {
  static const auto comm = make_self_communicator();
  return *comm;
}

struct Contents {
  std::vector<float> wte, lambdas, moments;
  std::vector<int64_t> counts;
  CheckpointContents all;

  explicit Contents(int64_t step, int variant = 0) {
    for (int i = 0; i < 12; ++i) wte.push_back(value(step, variant, i));
    for (int i = 0; i < 3; ++i) lambdas.push_back(value(step, variant, 100 + i));
    for (int i = 0; i < 12; ++i) moments.push_back(value(step, variant, 200 + i));
    counts.push_back(step * 7 + variant);
    all.step = step;
    all.model = {{"transformer.wte.weight", {4, 3}, DType::kF32, wte.data()},
                 {"resid_lambdas", {3}, DType::kF32, lambdas.data()}};
    all.optimizer = {{"transformer.wte.weight.exp_avg", {4, 3}, DType::kF32, moments.data()},
                     {"steps", {1}, DType::kI64, counts.data()}};
    all.state = {{"tokenizer", "bytes"}, {"ema", ema(step, variant)}, {"variant", variant}};
  }

  static float value(int64_t step, int variant, int i) {
    return static_cast<float>(step) / 3.0f + static_cast<float>(variant * 1000 + i) * 0.7f;
  }
  static double ema(int64_t step, int variant) {
    return 1.0 / (3.0 + static_cast<double>(step) + variant * 1e-9);
  }
};

inline bool same(const TensorSet& set, const NamedTensor& want) {
  const auto& t = set.tensor(want.name);
  return t.dtype == want.dtype && t.shape == want.shape &&
         std::memcmp(t.data, want.data, t.bytes) == 0;
}

// Every byte of `got` is what Contents(step, variant) holds.
inline void expect_exact(const Checkpoint& got, int64_t step, int variant = 0) {
  const Contents want(step, variant);
  EXPECT_EQ(got.step(), step);
  EXPECT_EQ(got.model().tensors().size(), want.all.model.size());
  EXPECT_EQ(got.optimizer().tensors().size(), want.all.optimizer.size());
  for (const NamedTensor& t : want.all.model) EXPECT_TRUE(same(got.model(), t)) << t.name;
  for (const NamedTensor& t : want.all.optimizer) EXPECT_TRUE(same(got.optimizer(), t)) << t.name;
  EXPECT_EQ(got.state().at("step").as_int64(), step);
  EXPECT_EQ(got.state().at("ema").as_double(), Contents::ema(step, variant));
  EXPECT_EQ(got.state().at("variant").as_int64(), variant);
}

}  // namespace heddle::testing
