// Golden data of tests/golden/ and the measures its README defines.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/checkpoint/safetensors.h"
#include "framework/config/config.h"
#include "framework/core/json.h"
#include "framework/device/device.h"
#include "framework/model/gpt.h"
#include "tests/unit/support/golden_folder.h"

namespace heddle::testing {

inline std::string golden_path(const std::string& file) {
  return golden_folder() + "/" + file;
}

// The optimizer of a trajectory, from its configuration in golden.json.
inline OptimConfig golden_optim(const json::value& config) {
  OptimConfig c;
  const auto number = [&](const char* name) { return config.at(name).to_number<double>(); };
  c.unembedding_lr = number("unembedding_lr");
  c.embedding_lr = number("embedding_lr");
  c.matrix_lr = number("matrix_lr");
  c.scalar_lr = number("scalar_lr");
  c.weight_decay = number("weight_decay");
  c.warmup_steps = config.at("warmup").as_int64();
  c.warmdown_ratio = number("warmdown_ratio");
  c.final_lr_frac = number("final_lr_frac");
  return c;
}

// ||got - want|| / ||want||
inline double relative_l2(const float* got, const float* want, int64_t n) {
  double difference = 0.0, norm = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2.0);
    norm += std::pow(static_cast<double>(want[i]), 2.0);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
}

// One model case of golden.json with its tensors.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name)
      : tensors(golden_path(name + ".safetensors")),
        info_(json::read_file(golden_path("golden.json")).at(name)) {}

  ModelConfig config() const {
    const json::value& c = info_.at("config");
    ModelConfig out;
    out.sequence_len = c.at("sequence_len").as_int64();
    out.vocab_size = c.at("vocab_size").as_int64();
    out.n_layer = c.at("n_layer").as_int64();
    out.n_head = c.at("n_head").as_int64();
    out.n_kv_head = c.at("n_kv_head").as_int64();
    out.n_embd = c.at("n_embd").as_int64();
    out.window_pattern.letters = json::value_to<std::string>(c.at("window_pattern"));
    return out;
  }
  int64_t batch() const { return info_.at("config").at("B").as_int64(); }
  double value(const std::string& name) const {
    return info_.at("values").at(name).to_number<double>();
  }
  // The gate: 8 times the reference's own fp32 error, at least 5e-6.
  double gate(const std::string& tensor) const {
    return std::max(
        5e-6, 8.0 * info_.at("reference_fp32_error").at(tensor).at("rel_l2").to_number<double>());
  }
  std::vector<int32_t> ints(const std::string& name) const {
    const auto& t = tensors.tensor(name);
    const auto* data = static_cast<const int32_t*>(t.data);
    return {data, data + t.numel()};
  }

  SafetensorsFile tensors;

 private:
  json::value info_;
};

// A CPU device and the built-in plugins.
struct CpuHost {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<AttentionHost> attention = AttentionHost::create(AttentionConfig{}, *device);
};

// A model on its own host, since a host serves one model's selection.
struct TestModel {
  TestModel(const ModelSpec& spec, int64_t max_batch, int64_t seq_len, bool training)
      : gpt(spec, *host.device, *host.attention, max_batch, seq_len, training) {}

  void load(const GoldenCase& golden) {
    for (const ParamInfo& info : gpt.layout().params()) {
      const auto& t = golden.tensors.tensor("param/" + info.name);
      t.expect_shape(info.shape);
      host.device->upload(gpt.params() + info.offset, t.f32(), t.bytes);
    }
  }
  std::vector<float> gradient(const ParamInfo& info) const {
    std::vector<float> out(static_cast<size_t>(info.size()));
    host.device->download(out.data(), gpt.grads() + info.offset, out.size() * sizeof(float));
    return out;
  }

  CpuHost host;
  Gpt gpt;
};

}  // namespace heddle::testing
