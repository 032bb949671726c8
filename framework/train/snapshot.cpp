#include "framework/train/snapshot.h"

#include <vector>

#include "framework/checkpoint/weights.h"
#include "framework/config/dump.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

int64_t integer(const json::object& state, const char* key) {
  const json::value* v = state.if_contains(key);
  if (v == nullptr || !v->is_number()) {
    throw environment_error("checkpoint", std::string("state.json lacks the number \"") + key +
                                              "\"; it was not written by a training run");
  }
  return v->to_number<int64_t>();
}

std::string text(const json::object& state, const char* key) {
  const json::value* v = state.if_contains(key);
  return v != nullptr && v->is_string() ? std::string(v->as_string()) : std::string();
}

void restore_optimizer(const TensorSet& saved, Gpt& model, Optimizer& optimizer) {
  std::vector<ExpectedTensor> want;
  for (const StateTensor& t : optimizer.state()) want.push_back({t.name, t.shape});
  expect_tensors(saved, want);
  for (const StateTensor& t : optimizer.state()) {
    const auto& tensor = saved.tensor(t.name);
    model.device().upload(t.data, tensor.f32(), tensor.bytes);
  }
}

}  // namespace

CheckpointContents make_snapshot(const Gpt& model, Optimizer& optimizer, const Dataset& dataset,
                                 const Config& config, const Position& position) {
  CheckpointContents contents;
  contents.step = position.step;
  for (const ParamInfo& p : model.layout().params()) {
    contents.model.push_back({p.name, p.shape, DType::kF32, model.params() + p.offset});
  }
  for (const StateTensor& t : optimizer.state()) {
    contents.optimizer.push_back({t.name, t.shape, DType::kF32, t.data});
  }
  contents.state = {{"sequences", position.sequences},
                    {"tokens", position.tokens},
                    {"train_seconds", position.train_seconds},
                    {"model", spec_to_json(model.spec())},
                    {"tokenizer", dataset.tokenizer().name()},
                    {"data", dataset.fingerprint()},
                    {"config", dump_config(config)}};
  return contents;
}

Position restore_snapshot(const Checkpoint& checkpoint, const Dataset& dataset, Gpt& model,
                          Optimizer& optimizer) {
  const json::object& state = checkpoint.state();
  const ModelSpec saved = spec_from_json(state.at("model"), checkpoint.path() + "/state.json");
  const std::string difference = spec_difference(saved, model.spec());
  if (!difference.empty()) {
    throw config_error("cannot resume " + checkpoint.path() + ": it holds another model\n" +
                           difference,
                       "change model: back, or start a new run with another log.name");
  }
  if (text(state, "data") != dataset.fingerprint()) {
    throw config_error("cannot resume " + checkpoint.path() +
                           ": the data or their order are not those it was trained on",
                       "change data: back, or start from its weights with train.init_from");
  }
  load_model_weights(checkpoint.model(), model);
  restore_optimizer(checkpoint.optimizer(), model, optimizer);
  return {.step = checkpoint.step(),
          .sequences = integer(state, "sequences"),
          .tokens = integer(state, "tokens"),
          .train_seconds = state.at("train_seconds").to_number<double>()};
}

void load_model_weights(const TensorSet& weights, Gpt& model) {
  std::vector<ExpectedTensor> want;
  for (const ParamInfo& p : model.layout().params()) want.push_back({p.name, p.shape});
  expect_tensors(weights, want);
  for (const ParamInfo& p : model.layout().params()) {
    const std::vector<float> values = weights.tensor(p.name).to_f32();
    model.device().upload(model.params() + p.offset, values.data(),
                          values.size() * sizeof(float));
  }
}

}  // namespace heddle
