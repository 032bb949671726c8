#include "framework/model/gpt.h"

#include <fmt/format.h>

#include <algorithm>

#include <utility>

#include "framework/core/error.h"

namespace heddle {
namespace {

size_t float_bytes(int64_t n) {
  return static_cast<size_t>(n) * sizeof(float);
}

std::vector<AttentionLayerKind> layer_kinds(const ModelSpec& spec) {
  std::vector<AttentionLayerKind> kinds;
  for (int64_t i = 0; i < spec.n_layer; ++i) kinds.push_back(attention_kind(spec, i));
  return kinds;
}

size_t select_and_measure(const ModelSpec& spec, AttentionHost& host, int64_t max_batch,
                          int64_t seq_len, bool training) {
  host.select(attention_kinds(spec), max_batch, seq_len, attention_layout(spec));
  return attention_workspace_bytes(spec, host, max_batch, seq_len, training);
}

std::vector<MemoryItem> memory_items(const ParamLayout& layout, const Activations& acts,
                                     bool gradients) {
  const size_t weights = float_bytes(layout.total());
  const size_t logits = acts.logits_bytes();
  return {{"weights", weights},
          {"gradients", gradients ? weights : 0},
          {"activations", acts.bytes() - logits - acts.workspace_bytes},
          {"logits", logits},
          {"workspace", acts.workspace_bytes}};
}

}  // namespace

std::vector<MemoryItem> plan_memory(const ModelSpec& spec, int64_t max_batch, int64_t seq_len,
                                    bool training, size_t workspace) {
  const Activations acts(spec, max_batch, seq_len, training, workspace);
  return memory_items(ParamLayout(spec), acts, training);
}

size_t attention_workspace_bytes(const ModelSpec& spec, AttentionHost& host, int64_t max_batch,
                                 int64_t seq_len, bool training) {
  const AttentionLayout layout = attention_layout(spec);
  size_t bytes = 0;
  for (const AttentionLayerKind& kind : attention_kinds(spec)) {
    bytes = std::max(
        bytes, host.bind_forward(kind, max_batch, seq_len, layout, training).workspace_bytes());
    if (!training) continue;
    bytes = std::max(bytes, host.bind_backward(kind, max_batch, seq_len, layout).workspace_bytes());
  }
  return bytes;
}

Gpt::Gpt(const ModelSpec& spec, Device& device, AttentionHost& attention, int64_t max_batch,
         int64_t seq_len, bool training)
    : Gpt(spec, device, attention, max_batch, seq_len, training, {ParamLayout(spec)}) {}

Gpt::Gpt(const ModelSpec& spec, Device& device, AttentionHost& attention, int64_t max_batch,
         int64_t seq_len, bool training, ParamPlacement placement)
    : spec_(spec),
      layout_(std::move(placement.layout)),
      device_(device),
      ops_(device.ops()),
      attention_(attention),
      max_batch_(max_batch),
      seq_len_(seq_len),
      training_(training),
      attention_layout_(attention_layout(spec)),
      kinds_(layer_kinds(spec)),
      rope_(spec, device, seq_len),
      acts_(spec, max_batch, seq_len, training,
            select_and_measure(spec, attention, max_batch, seq_len, training)) {
  weights_ = device.allocate(float_bytes(layout_.total()), "weights");
  params_ = view_params(spec_, layout_, params());
  if (training) {
    if (placement.own_gradients) {
      gradients_ = device.allocate(float_bytes(layout_.total()), "gradients");
    }
    point_gradients();
  }
  memory_ = device.allocate(acts_.bytes(), "activations");
  acts_.commit(memory_.get());
  host_losses_.resize(static_cast<size_t>(acts_.rows));
  host_piece_.resize(static_cast<size_t>(acts_.rows));
  host_rows_.resize(static_cast<size_t>(acts_.rows));
}

// Views that point into the weights at first, to learn each pointer's offset; then at the
// gradients, or nowhere until they are placed.
void Gpt::point_gradients() {
  grads_ = params_;
  const auto add = [this](float*& pointer) {
    if (pointer == nullptr) return;
    gradient_pointers_.push_back({[&pointer](float* p) { pointer = p; }, pointer - params()});
  };
  const auto add_matrix = [this](Matrix& m) {
    if (m.empty()) return;
    gradient_pointers_.push_back({[&m](float* p) { m.data = p; }, m.f32() - params()});
  };
  add_matrix(grads_.wte);
  add_matrix(grads_.lm_head);
  for (BlockParams& b : grads_.blocks) {
    for (Matrix* m : {&b.qkv, &b.q, &b.k, &b.v, &b.proj, &b.fc, &b.mlp, &b.value_embed}) {
      add_matrix(*m);
    }
    add(b.ve_gate);
    add(b.resid);
    add(b.x0);
  }
  add(grads_.smear_gate);
  add(grads_.smear_lambda);
  add(grads_.backout_lambda);
  if (grads() != nullptr) return place_gradients(0, layout_.total(), grads());
  for (const GradientPointer& p : gradient_pointers_) p.set(nullptr);
}

void Gpt::place_gradients(int64_t begin, int64_t end, float* where) {
  replays_.clear();
  for (const GradientPointer& p : gradient_pointers_) {
    if (p.offset >= begin && p.offset < end) p.set(where + (p.offset - begin));
  }
}

std::vector<MemoryItem> Gpt::memory_report() const {
  return memory_items(layout_, acts_, grads() != nullptr);
}

void Gpt::init_params(uint64_t seed) {
  heddle::init_params(spec_, layout_, seed, device_, params());
}

void Gpt::zero_grads() {
  HEDDLE_CHECK(grads() != nullptr, "zero_grads() of a model without gradients");
  ops_.zero(grads(), float_bytes(layout_.total()));
}

void Gpt::check_ids(const int32_t* ids, int64_t n, int32_t lowest, const char* what) const {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= lowest && ids[i] < spec_.vocab_size) continue;
    throw config_error(fmt::format("{} {} at place {} of a batch, expected {} to {}", what, ids[i],
                                   i, lowest, spec_.vocab_size - 1),
                       "train and generate with the data's own tokenizer (model.vocab_size: auto)");
  }
}

void Gpt::upload_tokens(const int32_t* tokens, const Pass& pass) {
  HEDDLE_CHECK(pass.batch >= 1 && pass.rows() <= acts_.rows,
               fmt::format("batch {} in a model planned for {}", pass.batch, max_batch_));
  check_ids(tokens, pass.rows(), 0, "token");
  device_.upload(acts_.tokens, tokens, static_cast<size_t>(pass.rows()) * sizeof(int32_t));
}

void Gpt::upload_targets(const int32_t* targets, const Pass& pass) {
  check_ids(targets, pass.rows(), -1, "target");
  device_.upload(acts_.targets, targets, static_cast<size_t>(pass.rows()) * sizeof(int32_t));
}

LossSum Gpt::collect_loss(const int32_t* targets, int64_t n) {
  device_.download(host_losses_.data(), acts_.loss, float_bytes(n));
  LossSum sum;
  for (int64_t i = 0; i < n; ++i) {
    sum.nats += static_cast<double>(host_losses_[static_cast<size_t>(i)]);
    sum.tokens += targets[i] >= 0 ? 1 : 0;
  }
  return sum;
}

LossSum Gpt::forward_backward(const int32_t* tokens, const int32_t* targets, int64_t batch) {
  HEDDLE_CHECK(training_, "forward_backward() of a model that does not train");
  const Pass pass{batch, seq_len_};
  upload_tokens(tokens, pass);
  upload_targets(targets, pass);
  enqueue(replay_of(batch), [this, &pass] {
    forward(pass);
    backward(pass);
  });
  return collect_loss(targets, pass.rows());
}

std::string Gpt::replay_refusal() const {
  if (device_.make_replay() == nullptr) return device_.description() + " does not record";
  if (hooks_ != nullptr && !hooks_->idle()) return "ranks exchange gradients inside a pass";
  return attention_.replay_refusal();
}

Replay* Gpt::replay_of(int64_t batch) {
  auto it = replays_.find(batch);
  if (it == replays_.end()) {
    it = replays_.emplace(batch, replay_refusal().empty() ? device_.make_replay() : nullptr).first;
  }
  return it->second.get();
}

LossSum Gpt::evaluate(const int32_t* tokens, const int32_t* targets, int64_t batch, float* losses,
                      int32_t* argmax) {
  const Pass pass{batch, seq_len_};
  upload_tokens(tokens, pass);
  upload_targets(targets, pass);
  forward(pass);
  const Matrix scratch = matrix(acts_.logits, acts_.chunk_rows, spec_.padded_vocab);
  ops_.head_loss(final_rows(pass), params_.lm_head, spec_.vocab_size,
                 static_cast<float>(spec_.softcap), acts_.targets, scratch, acts_.loss,
                 argmax == nullptr ? nullptr : acts_.argmax, nullptr, nullptr);
  const LossSum sum = collect_loss(targets, pass.rows());
  if (losses != nullptr) std::copy_n(host_losses_.begin(), pass.rows(), losses);
  if (argmax != nullptr) {
    device_.download(argmax, acts_.argmax, static_cast<size_t>(pass.rows()) * sizeof(int32_t));
  }
  return sum;
}

void Gpt::logits(const int32_t* tokens, int64_t batch, const int64_t* rows, int64_t n, float* out) {
  const Pass pass{batch, seq_len_};
  upload_tokens(tokens, pass);
  forward(pass);
  head(rows, n, out);
}

void* Gpt::workspace(size_t bytes) {
  if (bytes <= acts_.workspace_bytes) return acts_.workspace;
  if (bytes > extra_workspace_bytes_) {
    replays_.clear();
    extra_workspace_ = device_.allocate(bytes, "attention workspace");
    extra_workspace_bytes_ = bytes;
  }
  return extra_workspace_.get();
}

}  // namespace heddle
