// Choosing a backend for a kind of layer: asking every candidate, ranking, and keeping the reasons.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/attention/catalog.h"
#include "framework/attention/plugin.h"

namespace heddle {

// A plugin that this process may use on its device; loaded when first asked for.
class Backend {
 public:
  Backend(PluginCandidate candidate, Device& device);

  const std::string& name() const { return name_; }
  // "cpu_sdpa 1.0.0"
  std::string title() const;
  const PluginCandidate& candidate() const { return candidate_; }
  Device& device() const { return device_; }
  // nullptr when it cannot serve here; refusal() says why.
  PluginContext* context();
  const std::string& refusal() const { return refusal_; }

 private:
  PluginCandidate candidate_;
  Device& device_;
  std::string name_;
  bool opened_ = false;
  std::unique_ptr<PluginContext> context_;
  std::string refusal_;
};

// The device as plugins see it.
heddle_device plugin_device(const Device& device);

// The problem that a kind makes on a device, before a plugin has had its say.
heddle_attention_problem device_problem(const Device& device, const AttentionLayerKind& kind,
                                        uint32_t op, int64_t batch, int64_t q_len, int64_t k_len,
                                        const AttentionLayout& layout, bool with_lse);

// query_preferring_determinism() of a backend, every failure put into answer.refusal. A device that
// computes in bf16 asks for that first (converted.h) and takes fp32 where a backend refuses;
// decoding, which reads the fp32 cache, asks for fp32 alone.
QueryAnswer ask(Backend& backend, heddle_attention_problem& problem);

// What a training run on one kind of layer looks like.
struct TrainingShape {
  AttentionLayerKind kind;
  int64_t batch = 0;
  int64_t seq_len = 0;
  AttentionLayout layout;
};

struct Selection {
  TrainingShape shape;
  Backend* backend = nullptr;
  QueryAnswer forward, backward;
  bool deterministic = true;
  Backend* decode_backend = nullptr;  // nullptr: none can
  QueryAnswer decode;                 // of one token after seq_len - 1 others
  std::vector<std::string> notes;     // "not NAME (path): reason", "decode ..."
};

// Chooses among `candidates` (for training) and `all` (for decode, when the chosen one refuses).
// Ranking: promises the same bits every time, then the lowest known estimate of forward + backward,
// then order. The estimate of a plugin that declares ALLOCATES or OWN_THREADS counts twice: what it
// takes from the host's memory and cores is not in it. Throws heddle::Error (plugin) with every
// reason when none accepts.
Selection choose_backend(const Device& device, const TrainingShape& shape,
                         const std::vector<Backend*>& candidates, const std::vector<Backend*>& all,
                         bool named);

// "H 4 K 2 D 32 window_left 128".
std::string kind_text(const AttentionLayerKind& kind);
// The paragraph of explain().
std::string selection_text(const Selection& selection);
// The line of fingerprint().
std::string selection_fingerprint(const Selection& selection);

}  // namespace heddle
