#include "framework/model/gpt.h"

namespace heddle {

template <class Body>
void Gpt::backward_part(int64_t part, Body&& body) {
  if (hooks_ != nullptr) hooks_->before_backward(part);
  body();
  if (hooks_ != nullptr) hooks_->after_backward(part);
}

// Walks the forward pass from its end. acts_.dx is the gradient of the residual stream throughout.
void Gpt::backward(const Pass& pass) {
  const int64_t elements = pass.rows() * spec_.n_embd;
  ops_.index_tokens(acts_.tokens, pass.rows(), spec_.vocab_size, &acts_.index);
  if (spec_.x0_lambdas) ops_.zero(acts_.dx0, static_cast<size_t>(elements) * sizeof(float));
  if (spec_.backout) ops_.zero(acts_.dxb, static_cast<size_t>(elements) * sizeof(float));
  backward_part(spec_.n_layer, [&] { head_backward(pass); });
  for (int64_t i = spec_.n_layer - 1; i >= 0; --i) {
    if (spec_.backout && i == spec_.backout_layer()) ops_.add(acts_.dx, acts_.dxb, elements);
    backward_part(i, [&] { block_backward(i, pass); });
  }
  backward_part(kEmbeddingPart, [&] {
    // The embedding is the first block's input and a part of every block's.
    if (spec_.x0_lambdas) ops_.add(acts_.dx, acts_.dx0, elements);
    embed_backward(pass);
  });
}

void Gpt::head_backward(const Pass& pass) {
  const int64_t n = pass.rows(), c = spec_.n_embd;
  const Matrix scratch = matrix(acts_.logits, acts_.chunk_rows, spec_.padded_vocab);
  const Matrix dh = matrix(acts_.dfinal, n, c);
  ops_.head_loss(final_rows(pass), params_.lm_head, spec_.vocab_size,
                 static_cast<float>(spec_.softcap), acts_.targets, scratch, acts_.loss, nullptr,
                 &dh, &grads_.lm_head);
  const float* subtracted = spec_.backout ? stream(spec_.backout_layer() + 1) : nullptr;
  ops_.mix_norm_backward(final_mix(), acts_.dfinal, acts_.final_h, acts_.final_rstd, nullptr,
                         nullptr, subtracted, n, c, acts_.dx, acts_.dxb, nullptr,
                         grads_.backout_lambda);
}

void Gpt::block_backward(int64_t layer, const Pass& pass) {
  mlp_backward(layer, pass);
  attention_backward(layer, pass);
}

void Gpt::mlp_backward(int64_t layer, const Pass& pass) {
  const BlockParams& w = weights(layer);
  const BlockParams& g = gradients(layer);
  const BlockActivations& b = block(layer);
  const int64_t n = pass.rows(), c = spec_.n_embd;
  const Matrix dx = matrix(acts_.dx, n, c);
  const Matrix da = matrix(acts_.da, n, spec_.mlp_dim());
  const Matrix dh2 = matrix(acts_.dh, n, c);

  ops_.matmul(dx, true, matrix(b.a, n, spec_.mlp_dim()), false, g.mlp, 1.0f, 1.0f);
  poll();
  ops_.matmul(dx, false, w.mlp, false, da);
  poll();
  ops_.relu2_backward(acts_.da, b.a, n * spec_.mlp_dim());
  ops_.matmul(da, true, matrix(b.h2, n, c), false, g.fc, 1.0f, 1.0f);
  poll();
  ops_.matmul(da, false, w.fc, false, dh2);
  poll();
  ops_.mix_norm_backward(Mix{}, acts_.dh, b.h2, b.rstd2, acts_.dx, nullptr, nullptr, n, c, acts_.dx,
                         nullptr, nullptr, nullptr);
}

void Gpt::attention_backward(int64_t layer, const Pass& pass) {
  const BlockParams& w = weights(layer);
  const BlockParams& g = gradients(layer);
  const BlockActivations& b = block(layer);
  const int64_t n = pass.rows(), c = spec_.n_embd, kd = spec_.kv_dim();
  const Matrix dx = matrix(acts_.dx, n, c);
  const Matrix h = matrix(b.h, n, c);
  const Matrix qkv = matrix(b.qkv, n, spec_.qkv_dim());
  const Matrix dqkv = matrix(acts_.dqkv, n, spec_.qkv_dim());

  ops_.matmul(dx, true, matrix(b.o, n, c), false, g.proj, 1.0f, 1.0f);
  poll();
  ops_.matmul(dx, false, w.proj, false, matrix(acts_.dout, n, c));
  poll();
  run_attention_backward(layer, pass);
  poll();
  ops_.rope_norm_backward(rope_op(pass, spec_.n_head), qkv.columns(0, c), b.q_rstd,
                          dqkv.columns(0, c));
  ops_.rope_norm_backward(rope_op(pass, spec_.n_kv_head), qkv.columns(c, kd), b.k_rstd,
                          dqkv.columns(c, kd));
  ops_.matmul(dqkv, true, h, false, g.qkv, 1.0f, 1.0f);
  poll();
  ops_.matmul(dqkv, false, w.qkv, false, matrix(acts_.dh, n, c));
  poll();
  if (spec_.has_value_embed(layer)) {
    ops_.value_embed_backward(dqkv.columns(c + kd, kd), b.h, c, w.ve_gate, w.value_embed,
                              acts_.tokens, acts_.index, spec_.n_kv_head, b.gate, g.ve_gate,
                              acts_.dh, g.value_embed);
  }
  ops_.mix_norm_backward(block_mix(layer), acts_.dh, b.h, b.rstd, acts_.dx, stream(layer),
                         stream(0), n, c, acts_.dx, acts_.dx0, g.resid, g.x0);
}

void Gpt::run_attention_backward(int64_t layer, const Pass& pass) {
  const BlockActivations& b = block(layer);
  const int64_t c = spec_.n_embd, kd = spec_.kv_dim();
  attention_.set_layer(layer);
  BoundAttention& bound = attention_.bind_backward(kinds_[static_cast<size_t>(layer)], pass.batch,
                                                   pass.q_len, attention_layout_);
  heddle_attention_call call = {};
  call.q = b.qkv;
  call.k = b.qkv + c;
  call.v = b.qkv + c + kd;
  call.out = b.o;
  call.lse = b.lse;
  call.dout = acts_.dout;
  call.dq = acts_.dqkv;
  call.dk = acts_.dqkv + c;
  call.dv = acts_.dqkv + c + kd;
  call.workspace = workspace(bound.workspace_bytes());
  call.workspace_bytes = bound.workspace_bytes();
  bound.run(call);
}

void Gpt::embed_backward(const Pass& pass) {
  if (!spec_.smear) {
    ops_.embed_norm_backward(acts_.dx, stream(0), acts_.u_rstd, acts_.index, grads_.wte);
    return;
  }
  ops_.smear_backward(acts_.dx, acts_.u, acts_.smear_gate, pass.batch, pass.q_len, spec_.n_embd,
                      params_.smear_gate, params_.smear_lambda, acts_.dh, grads_.smear_gate,
                      grads_.smear_lambda);
  ops_.embed_norm_backward(acts_.dh, acts_.u, acts_.u_rstd, acts_.index, grads_.wte);
}

}  // namespace heddle
