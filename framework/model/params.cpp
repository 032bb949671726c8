#include "framework/model/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "framework/core/buffer.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"

namespace heddle {
namespace {

constexpr int64_t kAlign = 16;  // elements: one 64-byte cache line

// How a parameter starts.
struct Init {
  enum Kind { kConstant, kUniform, kNormal } kind = kConstant;
  float a = 0.0f;  // the constant; lower bound; standard deviation
  float b = 0.0f;  // upper bound
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.ends_with(end);
}

Init matrix_init(const ModelSpec& spec, std::string_view name) {
  const auto bound = static_cast<float>(std::sqrt(3.0 / static_cast<double>(spec.n_embd)));
  if (ends_with(name, "c_proj.weight")) return {Init::kConstant, 0.0f, 0.0f};
  if (ends_with(name, "ve_gate.weight")) return {Init::kUniform, 0.0f, 0.02f};
  if (ends_with(name, "c_fc.weight")) return {Init::kUniform, -0.4f * bound, 0.4f * bound};
  return {Init::kUniform, -bound, bound};
}

Init param_init(const ModelSpec& spec, const ParamInfo& info) {
  switch (info.kind) {
    case ParamKind::kWte:
      return {Init::kNormal, 0.8f, 0.0f};
    case ParamKind::kLmHead:
      return {Init::kNormal, 0.001f, 0.0f};
    case ParamKind::kValueEmbed:
    case ParamKind::kMatrix:
      return matrix_init(spec, info.name);
    case ParamKind::kSmearGate:
      return {Init::kUniform, 0.0f, 0.02f};
    case ParamKind::kBackoutLambda:
      return {Init::kConstant, 0.2f, 0.0f};
    case ParamKind::kSmearLambda:
    case ParamKind::kResid:
    case ParamKind::kX0:
      break;
  }
  return {};
}

// A value from `first` at layer 0 down to first - span at the last layer.
void fill_ramp(double first, double span, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(std::max<int64_t>(n - 1, 1));
    out[i] = static_cast<float>(first - span * share);
  }
}

void fill(const Init& init, uint64_t seed, const std::string& name, int64_t n, float* out) {
  const std::string stream = "init/" + name;
  const uint64_t draws = init.kind == Init::kNormal ? 2 : 1;
  parallel_for(n, 4096, [&](int64_t begin, int64_t end) {
    Rng rng(seed, stream);
    rng.set_position(draws * static_cast<uint64_t>(begin));
    for (int64_t i = begin; i < end; ++i) {
      out[i] = init.kind == Init::kNormal ? init.a * rng.normal()
                                          : init.a + (init.b - init.a) * rng.uniform();
    }
  });
}

}  // namespace

ParamLayout::ParamLayout(const ModelSpec& spec) {
  const int64_t vp = spec.padded_vocab;
  add("transformer.wte.weight", ParamKind::kWte, -1, {vp, spec.n_embd});
  for (int64_t i = 0; i < spec.n_layer; ++i) add_block(spec, static_cast<int>(i));
  add("lm_head.weight", ParamKind::kLmHead, -1, {vp, spec.n_embd});
  for (int64_t i = 0; i < spec.n_layer; ++i) {
    if (!spec.has_value_embed(i)) continue;
    add(fmt::format("value_embeds.{}.weight", i), ParamKind::kValueEmbed, static_cast<int>(i),
        {vp, spec.kv_dim()});
  }
  if (spec.resid_lambdas) add("resid_lambdas", ParamKind::kResid, -1, {spec.n_layer});
  if (spec.x0_lambdas) add("x0_lambdas", ParamKind::kX0, -1, {spec.n_layer});
  if (spec.smear) {
    add("smear_gate.weight", ParamKind::kSmearGate, -1, {1, kSmearChannels});
    add("smear_lambda", ParamKind::kSmearLambda, -1, {1});
  }
  if (spec.backout) add("backout_lambda", ParamKind::kBackoutLambda, -1, {1});
  total_ = (total_ + kAlign - 1) / kAlign * kAlign;
}

ParamLayout::ParamLayout(const ParamLayout& names, const std::vector<int64_t>& offsets,
                         int64_t total)
    : params_(names.params_), total_(total) {
  HEDDLE_CHECK(offsets.size() == params_.size(), "one offset per parameter");
  for (size_t i = 0; i < params_.size(); ++i) params_[i].offset = offsets[i];
}

void ParamLayout::add_block(const ModelSpec& spec, int layer) {
  const std::string prefix = fmt::format("transformer.h.{}.", layer);
  const int64_t c = spec.n_embd, kd = spec.kv_dim();
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols, bool adjacent = false) {
    add(prefix + name, ParamKind::kMatrix, layer, {rows, cols}, adjacent);
  };
  matrix("attn.c_q.weight", c, c);
  matrix("attn.c_k.weight", kd, c, true);
  matrix("attn.c_v.weight", kd, c, true);
  matrix("attn.c_proj.weight", c, c);
  if (spec.has_value_embed(layer))
    matrix("attn.ve_gate.weight", spec.n_kv_head, kValueGateChannels);
  matrix("mlp.c_fc.weight", spec.mlp_dim(), c);
  matrix("mlp.c_proj.weight", c, spec.mlp_dim());
}

void ParamLayout::add(std::string name, ParamKind kind, int layer, std::vector<int64_t> shape,
                      bool adjacent) {
  if (!adjacent) total_ = (total_ + kAlign - 1) / kAlign * kAlign;
  ParamInfo info;
  info.name = std::move(name);
  info.rows = shape.size() == 2 ? shape[0] : 1;
  info.cols = shape.back();
  info.offset = total_;
  info.kind = kind;
  info.layer = layer;
  info.shape = std::move(shape);
  total_ += info.size();
  params_.push_back(std::move(info));
}

const ParamInfo* ParamLayout::find(std::string_view name) const {
  for (const ParamInfo& info : params_) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

const ParamInfo& ParamLayout::at(std::string_view name) const {
  const ParamInfo* info = find(name);
  if (info == nullptr) {
    throw config_error(fmt::format("this model has no parameter \"{}\"", name),
                       "check the model section of the configuration");
  }
  return *info;
}

ParamCounts count_params(const ParamLayout& layout) {
  ParamCounts counts;
  for (const ParamInfo& info : layout.params()) {
    counts.total += info.size();
    switch (info.kind) {
      case ParamKind::kWte:
        counts.wte += info.size();
        break;
      case ParamKind::kLmHead:
        counts.lm_head += info.size();
        break;
      case ParamKind::kValueEmbed:
        counts.value_embeds += info.size();
        break;
      case ParamKind::kMatrix:
        counts.transformer_matrices += info.size();
        break;
      default:
        counts.scalars += info.size();
    }
  }
  return counts;
}

ModelParams view_params(const ModelSpec& spec, const ParamLayout& layout, float* base) {
  const auto mat = [&](std::string_view name) {
    const ParamInfo& info = layout.at(name);
    return matrix(base + info.offset, info.rows, info.cols);
  };
  const auto pointer = [&](std::string_view name) -> float* {
    const ParamInfo* info = layout.find(name);
    return info == nullptr ? nullptr : base + info->offset;
  };
  ModelParams out;
  out.wte = mat("transformer.wte.weight");
  out.lm_head = mat("lm_head.weight");
  out.smear_gate = pointer("smear_gate.weight");
  out.smear_lambda = pointer("smear_lambda");
  out.backout_lambda = pointer("backout_lambda");
  float* resid = pointer("resid_lambdas");
  float* x0 = pointer("x0_lambdas");
  for (int64_t i = 0; i < spec.n_layer; ++i) {
    const std::string prefix = fmt::format("transformer.h.{}.", i);
    BlockParams block;
    block.q = mat(prefix + "attn.c_q.weight");
    block.k = mat(prefix + "attn.c_k.weight");
    block.v = mat(prefix + "attn.c_v.weight");
    block.qkv = matrix(block.q.f32(), spec.qkv_dim(), spec.n_embd);
    block.proj = mat(prefix + "attn.c_proj.weight");
    block.fc = mat(prefix + "mlp.c_fc.weight");
    block.mlp = mat(prefix + "mlp.c_proj.weight");
    if (spec.has_value_embed(i)) {
      block.ve_gate = pointer(prefix + "attn.ve_gate.weight");
      block.value_embed = mat(fmt::format("value_embeds.{}.weight", i));
    }
    block.resid = resid == nullptr ? nullptr : resid + i;
    block.x0 = x0 == nullptr ? nullptr : x0 + i;
    out.blocks.push_back(block);
  }
  return out;
}

void init_param(const ModelSpec& spec, const ParamInfo& info, uint64_t seed, float* out) {
  if (info.kind == ParamKind::kResid) return fill_ramp(1.15, 0.10, info.size(), out);
  if (info.kind == ParamKind::kX0) return fill_ramp(0.20, 0.15, info.size(), out);
  const Init init = param_init(spec, info);
  if (init.kind == Init::kConstant) {
    std::fill(out, out + info.size(), init.a);
  } else {
    fill(init, seed, info.name, info.size(), out);
  }
}

void init_params(const ModelSpec& spec, const ParamLayout& layout, uint64_t seed, Device& device,
                 float* base) {
  int64_t largest = 0;
  for (const ParamInfo& info : layout.params()) largest = std::max(largest, info.size());
  const HostBuffer staging(static_cast<size_t>(largest) * sizeof(float), "initial weights");
  for (const ParamInfo& info : layout.params()) {
    init_param(spec, info, seed, staging.f32());
    device.upload(base + info.offset, staging.data(),
                  static_cast<size_t>(info.size()) * sizeof(float));
  }
}

}  // namespace heddle
