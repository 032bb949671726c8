// A model small enough for finite differences, with every weight random and none zero.
#pragma once

#include <vector>

#include "framework/core/rng.h"
#include "tests/unit/support/golden.h"

namespace heddle::testing {

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.n_layer = 3;
  c.n_head = 4;
  c.n_kv_head = 2;
  c.n_embd = 32;
  c.sequence_len = 9;
  c.vocab_size = 37;
  c.window_pattern.windows = {2, -1, 4};
  return c;
}

inline std::vector<float> random_params(const ParamLayout& layout) {
  std::vector<float> flat(static_cast<size_t>(layout.total()));
  for (const ParamInfo& info : layout.params()) {
    Rng rng(7, info.name);
    const bool lambda = info.shape.size() == 1;
    const float scale = info.kind == ParamKind::kMatrix ? 0.25f : 0.8f;
    for (int64_t i = 0; i < info.size(); ++i) {
      const float z = rng.normal();
      flat[static_cast<size_t>(info.offset + i)] = lambda ? 0.7f + 0.2f * z : scale * z;
    }
  }
  return flat;
}

inline std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed = 3) {
  Rng rng(seed, "tokens");
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab)));
  return out;
}

inline void load_random(TestModel& model) {
  const std::vector<float> flat = random_params(model.gpt.layout());
  model.host.device->upload(model.gpt.params(), flat.data(), flat.size() * sizeof(float));
}

inline std::vector<float> all_gradients(const TestModel& model) {
  std::vector<float> out(static_cast<size_t>(model.gpt.layout().total()));
  model.host.device->download(out.data(), model.gpt.grads(), out.size() * sizeof(float));
  return out;
}

}  // namespace heddle::testing
