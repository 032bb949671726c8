#include <algorithm>

#include "framework/model/gpt.h"

namespace heddle {

void Gpt::forward(const Pass& pass) {
  before_forward(kEmbeddingPart);
  embed(pass);
  for (int64_t i = 0; i < spec_.n_layer; ++i) {
    before_forward(i);
    const BlockParams& w = weights(i);
    for (const Matrix* m : {&w.qkv, &w.proj, &w.fc, &w.mlp}) announce(*m);
    block_forward(i, pass);
  }
  before_forward(spec_.n_layer);
  announce(params_.lm_head);
  const float* subtracted = spec_.backout ? stream(spec_.backout_layer() + 1) : nullptr;
  ops_.mix_norm_forward(final_mix(), stream(spec_.n_layer), subtracted, pass.rows(), spec_.n_embd,
                        acts_.final_mix, acts_.final_h, acts_.final_rstd);
}

void Gpt::announce(const Matrix& weights) {
  ops_.announce_weights(weights.f32(), weights.rows * weights.cols);
}

void Gpt::embed(const Pass& pass) {
  float* u = spec_.smear ? acts_.u : stream(0);
  ops_.embed_norm_forward(acts_.tokens, pass.rows(), params_.wte, u, acts_.u_rstd);
  if (!spec_.smear) return;
  // A row that has read nothing yet has zeros for its previous token, which leave x_0 = u_0.
  const float* prev = pass.cache == nullptr ? nullptr : pass.cache->prev(pass.first_row);
  ops_.smear_forward(u, pass.batch, pass.q_len, spec_.n_embd, params_.smear_gate,
                     params_.smear_lambda, prev, stream(0), acts_.smear_gate);
}

Mix Gpt::block_mix(int64_t layer) const {
  return {weights(layer).resid, weights(layer).x0, 1.0f};
}

Mix Gpt::final_mix() const {
  return {nullptr, params_.backout_lambda, -1.0f};
}

Matrix Gpt::final_rows(const Pass& pass) const {
  return matrix(acts_.final_h, pass.rows(), spec_.n_embd);
}

void Gpt::block_forward(int64_t layer, const Pass& pass) {
  const BlockParams& w = weights(layer);
  const BlockActivations& b = block(layer);
  const int64_t n = pass.rows(), c = spec_.n_embd;
  // The output buffer carries the residual: mixed input, then both branches added in place.
  float* x = stream(layer + 1);
  const Matrix residual = matrix(x, n, c);

  ops_.mix_norm_forward(block_mix(layer), stream(layer), stream(0), n, c, x, b.h, b.rstd);
  const Qkv qkv = project(layer, pass);
  if (spec_.has_value_embed(layer)) {
    ops_.value_embed_forward(b.h, c, w.ve_gate, w.value_embed, acts_.tokens, spec_.n_kv_head, qkv.v,
                             b.gate);
  }
  ops_.rope_norm_forward(rope_op(pass, spec_.n_head), qkv.q, b.q_rstd);
  ops_.rope_norm_forward(rope_op(pass, spec_.n_kv_head), qkv.k, b.k_rstd);
  if (pass.cache == nullptr) {
    attend(layer, pass, qkv);
  } else {
    attend_cache(layer, pass, qkv);
  }
  ops_.matmul(matrix(b.o, n, c), false, w.proj, true, residual, 1.0f, 1.0f);

  ops_.mix_norm_forward(Mix{}, x, nullptr, n, c, x, b.h2, b.rstd2);
  const Matrix a = matrix(b.a, n, spec_.mlp_dim());
  ops_.matmul(matrix(b.h2, n, c), false, w.fc, true, a);
  ops_.relu2_forward(b.a, n * spec_.mlp_dim());
  ops_.matmul(a, false, w.mlp, true, residual, 1.0f, 1.0f);
}

// Training: one product into fused rows. Decoding: three blocks, so that appending a row's keys to
// the cache is one copy.
Gpt::Qkv Gpt::project(int64_t layer, const Pass& pass) const {
  const BlockParams& w = weights(layer);
  const int64_t n = pass.rows(), c = spec_.n_embd, kd = spec_.kv_dim();
  const Matrix h = matrix(block(layer).h, n, c);
  float* base = block(layer).qkv;
  if (pass.cache == nullptr) {
    const Matrix fused = matrix(base, n, spec_.qkv_dim());
    ops_.matmul(h, false, w.qkv, true, fused);
    return {fused.columns(0, c), fused.columns(c, kd), fused.columns(c + kd, kd)};
  }
  const Qkv qkv{matrix(base, n, c), matrix(base + n * c, n, kd),
                matrix(base + n * (c + kd), n, kd)};
  ops_.matmul(h, false, w.q, true, qkv.q);
  ops_.matmul(h, false, w.k, true, qkv.k);
  ops_.matmul(h, false, w.v, true, qkv.v);
  return qkv;
}

RopeNorm Gpt::rope_op(const Pass& pass, int64_t heads) const {
  const RopeTable& table = pass.cache == nullptr ? rope_ : pass.cache->rope();
  return {.cos = table.cos(),
          .sin = table.sin(),
          .seq_len = pass.q_len,
          .pos0 = pass.cache == nullptr ? nullptr : pass.cache->pos0(),
          .heads = heads,
          .head_dim = spec_.head_dim,
          .norm = spec_.qk_norm,
          .scale = static_cast<float>(spec_.qk_scale)};
}

void Gpt::attend(int64_t layer, const Pass& pass, const Qkv& qkv) {
  const BlockActivations& b = block(layer);
  attention_.set_layer(layer);
  BoundAttention& bound = attention_.bind_forward(kinds_[static_cast<size_t>(layer)], pass.batch,
                                                  pass.q_len, attention_layout_, training_);
  heddle_attention_call call = {};
  call.q = qkv.q.data;
  call.k = qkv.k.data;
  call.v = qkv.v.data;
  call.out = b.o;
  call.lse = training_ ? b.lse : nullptr;
  call.workspace = workspace(bound.workspace_bytes());
  call.workspace_bytes = bound.workspace_bytes();
  bound.run(call);
}

void Gpt::head(const int64_t* rows, int64_t n, float* out) {
  const int64_t c = spec_.n_embd, v = spec_.vocab_size;
  for (int64_t begin = 0; begin < n; begin += acts_.chunk_rows) {
    const int64_t count = std::min(acts_.chunk_rows, n - begin);
    for (int64_t i = 0; i < count; ++i) {
      ops_.copy(acts_.head_rows + i * c, acts_.final_h + rows[begin + i] * c, c);
    }
    const Matrix chunk = matrix(acts_.logits, count, v);
    ops_.head_logits(matrix(acts_.head_rows, count, c), params_.lm_head, v,
                     static_cast<float>(spec_.softcap), chunk);
    device_.download(out + begin * v, acts_.logits, static_cast<size_t>(count * v) * sizeof(float));
  }
}

}  // namespace heddle
