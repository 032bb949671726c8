#include "framework/model/activations.h"

#include <algorithm>
#include <iterator>

namespace heddle {
namespace {

// Enough rows for the products with lm_head to run at full speed: every chunk reads its weights
// and, in training, adds to their gradient. Training's logits share memory with gradients that come
// later.
constexpr int64_t kLogitsBytes = int64_t{32} << 20, kTrainingLogitsBytes = int64_t{128} << 20;
constexpr int64_t kMinChunk = 64;

}  // namespace

int64_t logit_rows(int64_t rows, int64_t padded_vocab, bool training) {
  const int64_t bytes = training ? kTrainingLogitsBytes : kLogitsBytes;
  const int64_t fitting = bytes / (padded_vocab * static_cast<int64_t>(sizeof(float)));
  return std::min(rows, std::max(fitting, kMinChunk));
}

Activations::Activations(const ModelSpec& spec, int64_t max_batch, int64_t seq_len, bool training,
                         size_t workspace_size)
    : rows(max_batch * seq_len),
      chunk_rows(logit_rows(rows, spec.padded_vocab, training)),
      workspace_bytes(workspace_size),
      padded_vocab_(spec.padded_vocab) {
  plan_batch(spec, training);
  plan_stream(spec, training);
  plan_blocks(spec, training);
  if (!training) reserve("logits", chunk_rows * spec.padded_vocab, &logits);
  reserve("logit rows", chunk_rows * spec.n_embd, &head_rows);
  reserve("attention workspace", static_cast<int64_t>(workspace_size), &workspace);
  if (training) {
    plan_head_and_backward(spec);
  } else {
    plan_head(spec);
  }
}

template <class T>
size_t Activations::reserve(const char* name, int64_t n, T** where) {
  const size_t entry = arena_.reserve(name, static_cast<size_t>(n) * sizeof(T));
  share(entry, where);
  return entry;
}

template <class T>
void Activations::share(size_t entry, T** where) {
  setters_.emplace_back([this, entry, where] { *where = static_cast<T*>(arena_.data(entry)); });
}

void Activations::plan_batch(const ModelSpec& spec, bool training) {
  reserve("tokens", rows, &tokens);
  reserve("targets", rows, &targets);
  reserve("loss", rows, &loss);
  reserve("argmax", rows, &argmax);
  if (!training) return;
  reserve("token order", rows, &index.order);
  reserve("token ids", rows, &index.ids);
  reserve("token starts", rows + 1, &index.starts);
  reserve("token counters", spec.vocab_size + 1, &index.scratch);
}

void Activations::plan_stream(const ModelSpec& spec, bool training) {
  const int64_t nc = rows * spec.n_embd;
  if (spec.smear) {
    reserve("embeddings", nc, &u);
    reserve("smear gate", rows, &smear_gate);
  }
  reserve("embedding rstd", rows, &u_rstd);
  const auto layers = static_cast<size_t>(spec.n_layer);
  stream.resize(layers + 1);
  size_t entry = reserve("stream", nc, &stream[0]);
  const bool own = training && spec.resid_lambdas;
  for (size_t i = 1; i <= layers; ++i) {
    // Shared buffers part where backout still needs the output of a block.
    const bool parts = spec.backout && static_cast<int64_t>(i) == spec.backout_layer() + 2;
    if (own || i == 1 || parts) {
      entry = reserve("stream", nc, &stream[i]);
    } else {
      share(entry, &stream[i]);
    }
  }
}

void Activations::plan_blocks(const ModelSpec& spec, bool training) {
  const int64_t nc = rows * spec.n_embd;
  blocks.resize(static_cast<size_t>(spec.n_layer));
  size_t entries[11] = {};
  for (size_t i = 0; i < blocks.size(); ++i) {
    BlockActivations& b = blocks[i];
    const struct {
      const char* name;
      int64_t size;
      float** where;
    } buffers[] = {
        {"h", nc, &b.h},
        {"rstd", rows, &b.rstd},
        {"qkv", rows * spec.qkv_dim(), &b.qkv},
        {"q rstd", rows * spec.n_head, &b.q_rstd},
        {"k rstd", rows * spec.n_kv_head, &b.k_rstd},
        {"value gate", rows * spec.n_kv_head, &b.gate},
        {"o", nc, &b.o},
        {"lse", rows * spec.n_head, &b.lse},
        {"h2", nc, &b.h2},
        {"rstd2", rows, &b.rstd2},
        {"a", rows * spec.mlp_dim(), &b.a},
    };
    static_assert(std::size(buffers) == std::size(entries));
    for (size_t m = 0; m < std::size(buffers); ++m) {
      if (training || i == 0) {
        entries[m] = reserve(buffers[m].name, buffers[m].size, buffers[m].where);
      } else {
        share(entries[m], buffers[m].where);  // without backward all blocks use the first's
      }
    }
  }
}

void Activations::plan_head(const ModelSpec& spec) {
  const int64_t nc = rows * spec.n_embd;
  reserve("final mix", nc, &final_mix);
  reserve("final h", nc, &final_h);
  reserve("final rstd", rows, &final_rstd);
}

// Reservations and releases in the order in which a step needs and drops the buffers.
void Activations::plan_head_and_backward(const ModelSpec& spec) {
  const int64_t nc = rows * spec.n_embd;
  const size_t mix = reserve("final mix", nc, &final_mix);
  const size_t h = reserve("final h", nc, &final_h);
  const size_t rstd = reserve("final rstd", rows, &final_rstd);
  arena_.release(mix);
  const size_t dhead = reserve("d final h", nc, &dfinal);
  const size_t rows_of_logits = reserve("logits", chunk_rows * spec.padded_vocab, &logits);
  reserve("d stream", nc, &dx);
  if (spec.x0_lambdas) reserve("d embedding", nc, &dx0);
  if (spec.backout) reserve("d backout", nc, &dxb);
  for (const size_t entry : {h, rstd, dhead, rows_of_logits}) arena_.release(entry);
  reserve("d h", nc, &dh);
  arena_.release(reserve("d a", rows * spec.mlp_dim(), &da));
  reserve("d o", nc, &dout);
  reserve("d qkv", rows * spec.qkv_dim(), &dqkv);
}

size_t Activations::logits_bytes() const {
  return static_cast<size_t>(chunk_rows * padded_vocab_) * sizeof(float);
}

void Activations::commit(void* base) {
  arena_.commit(base);
  for (const auto& set : setters_) set();
}

}  // namespace heddle
