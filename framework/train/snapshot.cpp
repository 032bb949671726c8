#include "framework/train/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "framework/checkpoint/weights.h"
#include "framework/config/dump.h"
#include "framework/core/buffer.h"
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

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

// Elements [begin, begin + count) of a tensor of the optimizer's state, as a checkpoint has them.
struct Slice {
  int64_t begin = 0, count = 0;
  const TensorSet::Tensor* tensor = nullptr;
};

// "NAME[12:24]" -> NAME and the slice; other names stand for all elements.
std::string parse_slice(const std::string& name, Slice* slice) {
  const size_t open = name.rfind('['), colon = name.rfind(':');
  if (!name.ends_with(']') || open == std::string::npos || colon == std::string::npos) return name;
  const char* end = name.data() + name.size() - 1;
  int64_t stop = 0;
  const auto a = std::from_chars(name.data() + open + 1, name.data() + colon, slice->begin);
  const auto b = std::from_chars(name.data() + colon + 1, end, stop);
  if (a.ec != std::errc() || b.ec != std::errc() || b.ptr != end ||
      stop - slice->begin != slice->count) {
    return name;  // refused with the unknown names
  }
  return name.substr(0, open);
}

using Slices = std::map<std::string, std::vector<Slice>>;

// By name, ascending. Throws unless the slices of every tensor that the optimizer has make it up,
// and there are no others.
Slices find_slices(const TensorSet& saved, const std::vector<StateShape>& expected) {
  Slices slices;
  for (const auto& [name, tensor] : saved.tensors()) {
    Slice slice{0, tensor.numel(), &tensor};
    const std::string whole = parse_slice(name, &slice);
    slices[whole].push_back(slice);
  }
  TensorSet found(saved.source());
  for (auto& [name, list] : slices) {
    std::sort(list.begin(), list.end(),
              [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const Slice& s : list) {
      if (s.begin != at) {
        throw environment_error(
            "checkpoint",
            fmt::format("{}: elements of {} from {} on are {}", saved.source(), name,
                        std::min(at, s.begin), s.begin > at ? "missing" : "there twice"));
      }
      at += s.count;
    }
    const bool whole = list.size() == 1 && list[0].tensor->name == name;
    TensorSet::Tensor tensor = *list[0].tensor;
    tensor.name = name;
    if (!whole) tensor.shape = {at};
    found.insert(std::move(tensor));
  }
  std::vector<ExpectedTensor> want;
  for (const StateShape& s : expected) {
    const auto it = slices.find(s.name);
    const bool whole =
        it == slices.end() || (it->second.size() == 1 && it->second[0].tensor->name == s.name);
    want.push_back({s.name, whole ? s.shape : std::vector<int64_t>{elements(s.shape)}});
  }
  expect_tensors(found, want);
  return slices;
}

void restore_optimizer(const TensorSet& saved, Gpt& model, Optimizer& optimizer,
                       const std::vector<StateShape>& expected) {
  const Slices slices = find_slices(saved, expected);
  for (const StateTensor& t : optimizer.state()) {
    for (const Slice& s : slices.at(t.name)) {
      const int64_t begin = std::max(s.begin, t.begin);
      const int64_t end = std::min(s.begin + s.count, t.begin + t.count);
      if (begin >= end) continue;
      model.device().upload(t.data + (begin - t.begin), s.tensor->f32() + (begin - s.begin),
                            static_cast<size_t>(end - begin) * sizeof(float));
    }
  }
}

}  // namespace

CheckpointContents make_snapshot(const Gpt& model, Optimizer& optimizer, const Dataset& dataset,
                                 const Config& config, const Position& position,
                                 bool writes_state) {
  CheckpointContents contents;
  contents.step = position.step;
  const auto on_host = [&](const float* data, int64_t n) {
    Device& device = model.device();
    if (device.type() == DeviceType::kCpu) return data;
    const auto copy = std::make_shared<HostBuffer>(static_cast<size_t>(n) * sizeof(float),
                                                   "copying a checkpoint from the device");
    device.download(copy->data(), data, copy->bytes());
    contents.staged.emplace_back(copy, copy->data());
    return static_cast<const float*>(copy->f32());
  };
  for (const ParamInfo& p : model.layout().params()) {
    contents.model.push_back(
        {p.name, p.shape, DType::kF32, on_host(model.params() + p.offset, p.size())});
  }
  for (const StateTensor& t : optimizer.state()) {
    if (!writes_state) break;
    if (t.count == elements(t.shape)) {
      contents.optimizer.push_back({t.name, t.shape, DType::kF32, on_host(t.data, t.count)});
    } else {
      contents.optimizer.push_back({fmt::format("{}[{}:{}]", t.name, t.begin, t.begin + t.count),
                                    {t.count},
                                    DType::kF32,
                                    on_host(t.data, t.count)});
    }
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
    throw config_error(
        "cannot resume " + checkpoint.path() + ": it holds another model\n" + difference,
        "change model: back, or start a new run with another log.name");
  }
  if (text(state, "data") != dataset.fingerprint()) {
    throw config_error("cannot resume " + checkpoint.path() +
                           ": the data or their order are not those it was trained on",
                       "change data: back, or start from its weights with train.init_from");
  }
  load_model_weights(checkpoint.model(), model);
  const OptimConfig config = optimizer.config();
  restore_optimizer(checkpoint.optimizer(), model, optimizer,
                    state_shapes(plan_optimizer(config, model.layout(), 1)));
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
    model.device().upload(model.params() + p.offset, values.data(), values.size() * sizeof(float));
  }
}

}  // namespace heddle
