// Attention as the model sees it: problems bound to plugins. Loading, probing and choosing are
// behind AttentionHost; the model only names problems and passes pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/device/device.h"
#include "plugins/abi/heddle_attention.h"

namespace heddle {

// The shape of a layer's attention without batch and lengths; layers that share it share a choice.
struct AttentionLayerKind {
  int64_t n_head = 0;
  int64_t n_kv_head = 0;
  int64_t head_dim = 0;
  int64_t window_left = -1;  // -1: unlimited
  friend bool operator==(const AttentionLayerKind&, const AttentionLayerKind&) = default;
};

// Column offsets of q, k, v inside one projected (N, row_elements) buffer, or separate buffers
// (offset 0): what the problem's strides are made of.
struct AttentionLayout {
  int64_t q_row = 0, k_row = 0, v_row = 0;  // elements from one token to the next
  int64_t out_row = 0;
  int64_t dq_row = 0, dk_row = 0, dv_row = 0, dout_row = 0;
};

// Where a run is, for messages; -1: unknown.
struct AttentionLabel {
  int64_t step = -1, layer = -1;
};

// One problem on one plugin, ready to run. Thread-compatible.
class BoundAttention {
 public:
  virtual ~BoundAttention() = default;
  virtual const heddle_attention_problem& problem() const = 0;
  // What run() needs at call.workspace, alignment slack included. Bindings may share one block,
  // since calls on one host run one after the other.
  virtual size_t workspace_bytes() const = 0;
  virtual const std::string& backend() const = 0;
  // What the plugin says would run, for logs.
  virtual const std::string& kernel() const = 0;
  // The caller fills the tensor pointers, kv_len, workspace and workspace_bytes; struct_size,
  // stream and err are filled here. Pointers are aligned to problem().align_bytes (at most 16).
  // Allocates nothing. Throws heddle::Error (plugin) with the plugin's text when it fails, which is
  // a broken promise.
  virtual void run(const heddle_attention_call& call) = 0;
};

// Training problems (forward and backward) of a layer kind on one backend, and its decode.
// Positions are 0.., causal, scale 1/sqrt(head_dim).
class AttentionHost {
 public:
  // Finds, probes (in a fresh process) and loads the plugins; reads nothing but libraries.
  // `device` must outlive the host. Throws when config.backend names a plugin that is not there.
  static std::unique_ptr<AttentionHost> create(const AttentionConfig& config, Device& device);
  virtual ~AttentionHost() = default;

  // Chooses the backend of every kind for training sequences of q_len = k_len = seq_len. `auto`
  // takes the lowest estimated time of forward + backward; a named backend that cannot serve
  // throws with its reasons. Must precede bind*(). Kinds that are asked for later are refused.
  virtual void select(const std::vector<AttentionLayerKind>& kinds, int64_t batch, int64_t seq_len,
                      const AttentionLayout& layout) = 0;

  // One printable paragraph per kind: the choice, its kernel and time, and every refusal.
  virtual std::string explain() const = 0;
  // Name of the backend chosen for a kind.
  virtual const std::string& backend(const AttentionLayerKind& kind) const = 0;
  // Why calls of the selected backends must not be recorded and replayed (Device::make_replay);
  // empty: they may.
  virtual std::string replay_refusal() const = 0;
  // Plugin, version, crc32c of its file and the kernels, per kind: equal on ranks that agree.
  virtual std::string fingerprint() const = 0;

  // Bindings are made once per distinct problem and kept; asking again is cheap and allocates
  // nothing. Each distinct problem is put to the plugin's query(), so a batch or length other than
  // the selected one is fine as long as the plugin accepts it; throws with its reasons if not.
  // with_lse: a backward call follows and lse is to be written. A plugin whose backward does not
  // read lse (HEDDLE_PROP_NO_LSE) is not asked for it and leaves lse alone.
  virtual BoundAttention& bind_forward(const AttentionLayerKind& kind, int64_t batch,
                                       int64_t seq_len, const AttentionLayout& layout,
                                       bool with_lse) = 0;
  virtual BoundAttention& bind_backward(const AttentionLayerKind& kind, int64_t batch,
                                        int64_t seq_len, const AttentionLayout& layout) = 0;
  // q_len new tokens per row against a cache of `capacity` tokens; cache is (B, capacity, K, D)
  // contiguous; of the layout only q_row and out_row are used. When the backend of the kind
  // refuses, another one that accepts is taken, which explain() and the log say.
  virtual BoundAttention& bind_decode(const AttentionLayerKind& kind, int64_t batch, int64_t q_len,
                                      int64_t capacity, const AttentionLayout& layout) = 0;

  // What attention.validate names when it finds something.
  void set_step(int64_t step) { label_.step = step; }
  void set_layer(int64_t layer) { label_.layer = layer; }

 protected:
  AttentionLabel label_;
};

// The problems behind the bindings, exposed for probes, tests and tools: fp32 on CPU device 0,
// causal, scale 1/sqrt(head_dim), positions from 0. Batch strides are length * row, head strides
// head_dim; lse is (B, H, q_len). Training problems ask for the same bits every time
// (HEDDLE_FLAG_DETERMINISTIC). DECODE: k_len is the capacity of a contiguous cache.
heddle_attention_problem make_attention_problem(const AttentionLayerKind& kind, uint32_t op,
                                                int64_t batch, int64_t q_len, int64_t k_len,
                                                const AttentionLayout& layout, bool with_lse);

}  // namespace heddle
