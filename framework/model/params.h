// Every parameter by name, and where it lies in one flat fp32 buffer. Names and shapes are those of
// nanochat's checkpoint, so weights go both ways. Weights and gradients share the layout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/device/device.h"
#include "framework/model/spec.h"

namespace heddle {

// What the optimizer groups by.
enum class ParamKind {
  kWte,
  kLmHead,
  kValueEmbed,
  kMatrix,  // every matrix inside a block, value gates included
  kResid,
  kX0,
  kSmearGate,
  kSmearLambda,
  kBackoutLambda,
};

struct ParamInfo {
  std::string name;
  int64_t rows = 0;  // 1 for vectors
  int64_t cols = 0;
  int64_t offset = 0;  // elements from the start of the flat buffer
  ParamKind kind = ParamKind::kMatrix;
  int layer = -1;              // -1: not of a layer
  std::vector<int64_t> shape;  // as in a checkpoint

  int64_t size() const { return rows * cols; }
};

// Offsets are multiples of 16 elements, but c_q, c_k and c_v of a layer are adjacent: together one
// (C + 2*K*D, C) matrix. Elements between parameters are always 0. A parameter that a switch turns
// off is not there. The order of params() never changes; where they lie may (optim/ownership.h).
class ParamLayout {
 public:
  explicit ParamLayout(const ModelSpec& spec);
  // The same parameters elsewhere: offsets has one entry per parameter. c_q, c_k and c_v of a layer
  // must stay adjacent.
  ParamLayout(const ParamLayout& names, const std::vector<int64_t>& offsets, int64_t total);

  const std::vector<ParamInfo>& params() const { return params_; }
  int64_t total() const { return total_; }  // elements, a multiple of 16
  const ParamInfo* find(std::string_view name) const;
  // Throws heddle::Error (config) when there is none.
  const ParamInfo& at(std::string_view name) const;

 private:
  void add(std::string name, ParamKind kind, int layer, std::vector<int64_t> shape,
           bool adjacent = false);
  void add_block(const ModelSpec& spec, int layer);

  std::vector<ParamInfo> params_;
  int64_t total_ = 0;
};

struct ParamCounts {
  int64_t wte = 0;
  int64_t value_embeds = 0;
  int64_t lm_head = 0;
  int64_t transformer_matrices = 0;
  int64_t scalars = 0;  // lambdas and the smear gate
  int64_t total = 0;
};
ParamCounts count_params(const ParamLayout& layout);

// Pointers into a flat buffer, by role; nullptr or an empty matrix where a switch is off. Products
// are y = x W^T: matrices are (out, in).
struct BlockParams {
  Matrix qkv;                // (C + 2*K*D, C): q, k, v below each other
  Matrix q, k, v;            // the same, apart
  Matrix proj;               // (C, C)
  Matrix fc;                 // (4C, C)
  Matrix mlp;                // (C, 4C)
  float* ve_gate = nullptr;  // (K, 12)
  Matrix value_embed;        // (Vp, K*D)
  float* resid = nullptr;
  float* x0 = nullptr;
};
struct ModelParams {
  Matrix wte;      // (Vp, C)
  Matrix lm_head;  // (Vp, C)
  std::vector<BlockParams> blocks;
  float* smear_gate = nullptr;  // (24)
  float* smear_lambda = nullptr;
  float* backout_lambda = nullptr;
};
ModelParams view_params(const ModelSpec& spec, const ParamLayout& layout, float* base);

// nanochat's initial values (gpt.py init_weights), written to host memory of info.size() floats.
// Value i of a parameter depends on (seed, name, i) only.
void init_param(const ModelSpec& spec, const ParamInfo& info, uint64_t seed, float* out);
// All of them, into a flat device buffer.
void init_params(const ModelSpec& spec, const ParamLayout& layout, uint64_t seed, Device& device,
                 float* base);

}  // namespace heddle
