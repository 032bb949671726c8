// nanochat's GPT (karpathy/nanochat nanochat/gpt.py) on a Device, with attention from a plugin:
// forward, hand-written backward, and decoding with a key/value cache. Equations: docs/
// architecture.md. All memory of a step is planned at construction; steady steps allocate nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/device/device.h"
#include "framework/model/activations.h"
#include "framework/model/kv_cache.h"
#include "framework/model/params.h"
#include "framework/model/pass_hooks.h"
#include "framework/model/rope.h"
#include "framework/model/spec.h"

namespace heddle {

struct LossSum {
  double nats = 0.0;
  int64_t tokens = 0;  // targets >= 0
};

struct MemoryItem {
  std::string kind;  // weights, gradients, activations, logits, workspace
  size_t bytes = 0;
};
// The memory of a Gpt, without making one. `workspace` is attention_workspace_bytes().
std::vector<MemoryItem> plan_memory(const ModelSpec& spec, int64_t max_batch, int64_t seq_len,
                                    bool training, size_t workspace);
// The largest workspace that the layers' bindings ask for; `host` has selected already.
size_t attention_workspace_bytes(const ModelSpec& spec, AttentionHost& host, int64_t max_batch,
                                 int64_t seq_len, bool training);

// Where parameters and gradients of a training model lie.
struct ParamPlacement {
  ParamLayout layout;
  // False: the model owns no memory for gradients; place_gradients() says where they go.
  bool own_gradients = true;
};

class Gpt {
 public:
  // `device` and `attention` outlive the model. Selects the attention backends of its layers for
  // (max_batch, seq_len). Weights are zero until init_params() or an upload to params(). Without
  // `training` there are no gradients and blocks share their activations.
  Gpt(const ModelSpec& spec, Device& device, AttentionHost& attention, int64_t max_batch,
      int64_t seq_len, bool training);
  Gpt(const ModelSpec& spec, Device& device, AttentionHost& attention, int64_t max_batch,
      int64_t seq_len, bool training, ParamPlacement placement);
  Gpt(const Gpt&) = delete;
  Gpt& operator=(const Gpt&) = delete;

  const ModelSpec& spec() const { return spec_; }
  const ParamLayout& layout() const { return layout_; }
  Device& device() const { return device_; }
  int64_t max_batch() const { return max_batch_; }
  int64_t seq_len() const { return seq_len_; }
  bool training() const { return training_; }
  // Flat device buffers of layout().total() floats; grads() is nullptr without gradients of its
  // own.
  float* params() const { return static_cast<float*>(weights_.get()); }
  float* grads() const { return static_cast<float*>(gradients_.get()); }
  std::vector<MemoryItem> memory_report() const;

  void init_params(uint64_t seed);
  void zero_grads();

  // Why forward_backward() is enqueued operation by operation and not replayed from a record
  // (Device::make_replay); empty: it is replayed.
  std::string replay_refusal() const;

  // Called around the parts of every pass from now on; nullptr: nobody. Outlives the passes.
  void set_hooks(PassHooks* hooks) { hooks_ = hooks; }
  // Gradients of the parameters at offsets [begin, end) of the layout are added to `where` and on.
  // For a model without gradients of its own, from inside PassHooks::before_backward().
  void place_gradients(int64_t begin, int64_t end, float* where);

  // tokens, targets: host, (batch, seq_len) row-major, batch <= max_batch; ids in [0, vocab_size),
  // target -1 is ignored. Adds the gradient of the SUM of losses to grads(). Throws heddle::Error
  // (config) for an id outside the vocabulary.
  LossSum forward_backward(const int32_t* tokens, const int32_t* targets, int64_t batch);
  // Loss only. losses (batch, seq_len; 0 where ignored) and argmax (of the logits, everywhere) are
  // host memory and may be nullptr.
  LossSum evaluate(const int32_t* tokens, const int32_t* targets, int64_t batch,
                   float* losses = nullptr, int32_t* argmax = nullptr);
  // Logits (n, vocab_size) of the given rows (b * seq_len + t) of a full forward pass.
  void logits(const int32_t* tokens, int64_t batch, const int64_t* rows, int64_t n, float* out);

  struct DecodeOptions {
    int64_t first_row = 0;       // of the cache; rows first_row .. first_row + batch - 1 are read
    bool all_positions = false;  // logits of every token, not only of the last
  };
  // Reads q_len more tokens per row (batch, q_len), prefill and single steps alike. `out`, on the
  // host, takes logits after the last token (batch, vocab_size), or (batch, q_len, vocab_size).
  // Lengths in the cache grow by q_len. A row without room is a heddle::Error (config) before
  // anything is written.
  void decode(const int32_t* tokens, int64_t batch, int64_t q_len, KvCache& cache, float* out,
              const DecodeOptions& options);
  void decode(const int32_t* tokens, int64_t batch, int64_t q_len, KvCache& cache, float* out) {
    decode(tokens, batch, q_len, cache, out, DecodeOptions());
  }

 private:
  // The rows that one pass computes.
  struct Pass {
    int64_t batch = 0;
    int64_t q_len = 0;
    KvCache* cache = nullptr;  // decoding
    int64_t first_row = 0;     // of the cache
    int64_t rows() const { return batch * q_len; }
  };
  struct Qkv {
    Matrix q, k, v;
  };

  void check_ids(const int32_t* ids, int64_t n, int32_t lowest, const char* what) const;
  void upload_tokens(const int32_t* tokens, const Pass& pass);
  void upload_targets(const int32_t* targets, const Pass& pass);
  LossSum collect_loss(const int32_t* targets, int64_t n);

  // nullptr: passes of this batch are not replayed.
  Replay* replay_of(int64_t batch);

  // forward.cpp
  void forward(const Pass& pass);
  void announce(const Matrix& weights);
  void embed(const Pass& pass);
  void block_forward(int64_t layer, const Pass& pass);
  Qkv project(int64_t layer, const Pass& pass) const;
  void attend(int64_t layer, const Pass& pass, const Qkv& qkv);
  void attend_cache(int64_t layer, const Pass& pass, const Qkv& qkv);
  RopeNorm rope_op(const Pass& pass, int64_t heads) const;
  Mix block_mix(int64_t layer) const;
  Mix final_mix() const;
  Matrix final_rows(const Pass& pass) const;
  // Logits (n, V) of rows of the last pass, n at a time what the chunk holds.
  void head(const int64_t* rows, int64_t n, float* out);

  // backward.cpp
  void backward(const Pass& pass);
  template <class Body>
  void backward_part(int64_t part, Body&& body);
  void head_backward(const Pass& pass);
  void block_backward(int64_t layer, const Pass& pass);
  void mlp_backward(int64_t layer, const Pass& pass);
  void attention_backward(int64_t layer, const Pass& pass);
  void run_attention_backward(int64_t layer, const Pass& pass);
  void embed_backward(const Pass& pass);

  // decode.cpp
  // Logits of n rows of the last pass: first, first + step, ...
  void head_span(int64_t first, int64_t step, int64_t n, float* out);
  void decode_piece(const int32_t* tokens, const Pass& pass);
  void append(int64_t layer, const Pass& pass, const Qkv& qkv);

  void before_forward(int64_t part) const {
    if (hooks_ != nullptr) hooks_->before_forward(part);
  }
  void poll() const {
    if (hooks_ != nullptr) hooks_->poll();
  }
  void point_gradients();

  // Memory for a binding: the planned block, or a larger one that stays.
  void* workspace(size_t bytes);
  BlockActivations& block(int64_t layer) { return acts_.blocks[static_cast<size_t>(layer)]; }
  const BlockActivations& block(int64_t layer) const {
    return acts_.blocks[static_cast<size_t>(layer)];
  }
  const BlockParams& weights(int64_t layer) const {
    return params_.blocks[static_cast<size_t>(layer)];
  }
  const BlockParams& gradients(int64_t layer) const {
    return grads_.blocks[static_cast<size_t>(layer)];
  }
  float* stream(int64_t i) const { return acts_.stream[static_cast<size_t>(i)]; }

  const ModelSpec spec_;
  const ParamLayout layout_;
  Device& device_;
  Ops& ops_;
  AttentionHost& attention_;
  const int64_t max_batch_, seq_len_;
  const bool training_;
  const AttentionLayout attention_layout_;
  std::vector<AttentionLayerKind> kinds_;  // per layer
  RopeTable rope_;
  Activations acts_;
  DeviceBuffer weights_, gradients_, memory_, extra_workspace_;
  size_t extra_workspace_bytes_ = 0;
  ModelParams params_, grads_;
  // Every pointer of grads_ with the offset of what it points at.
  struct GradientPointer {
    std::function<void(float*)> set;
    int64_t offset = 0;
  };
  std::vector<GradientPointer> gradient_pointers_;
  PassHooks* hooks_ = nullptr;
  std::map<int64_t, std::unique_ptr<Replay>> replays_;  // of forward_backward(), per batch
  std::vector<float> host_losses_;
  std::vector<int32_t> host_piece_;  // tokens of a decoding piece
  std::vector<int64_t> host_rows_;   // rows whose logits a piece wants
};

}  // namespace heddle
