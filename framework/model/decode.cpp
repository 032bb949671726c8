#include <fmt/format.h>

#include <algorithm>

#include "framework/core/error.h"
#include "framework/model/gpt.h"

namespace heddle {

void Gpt::decode(const int32_t* tokens, int64_t batch, int64_t q_len, KvCache& cache, float* out,
                 const DecodeOptions& options) {
  HEDDLE_CHECK(batch >= 1 && q_len >= 1, "decode() of no tokens");
  if (batch > acts_.rows) {
    throw config_error(fmt::format("{} rows to decode at once, at most {}", batch, acts_.rows),
                       "decode fewer rows at once");
  }
  check_ids(tokens, batch * q_len, 0, "token");
  cache.require(options.first_row, batch, q_len);
  const int64_t vocab = spec_.vocab_size;
  // A prompt longer than the planned rows is read in pieces.
  const int64_t piece = std::min(q_len, acts_.rows / batch);
  for (int64_t begin = 0; begin < q_len; begin += piece) {
    const Pass pass{batch, std::min(piece, q_len - begin), &cache, options.first_row};
    for (int64_t b = 0; b < batch; ++b) {
      std::copy_n(tokens + b * q_len + begin, pass.q_len, host_piece_.data() + b * pass.q_len);
    }
    decode_piece(host_piece_.data(), pass);
    if (options.all_positions) {
      for (int64_t b = 0; b < batch; ++b) {
        head_span(b * pass.q_len, 1, pass.q_len, out + (b * q_len + begin) * vocab);
      }
    } else if (begin + pass.q_len == q_len) {
      head_span(pass.q_len - 1, pass.q_len, batch, out);
    }
  }
}

void Gpt::head_span(int64_t first, int64_t step, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) host_rows_[static_cast<size_t>(i)] = first + i * step;
  head(host_rows_.data(), n, out);
}

// One pass; the cache's state changes only after the last layer.
void Gpt::decode_piece(const int32_t* tokens, const Pass& pass) {
  upload_tokens(tokens, pass);
  KvCache& cache = *pass.cache;
  cache.begin(pass.first_row, pass.batch, pass.q_len);
  forward(pass);
  if (spec_.smear) {
    const int64_t c = spec_.n_embd;
    for (int64_t b = 0; b < pass.batch; ++b) {
      ops_.copy(cache.prev(pass.first_row + b), acts_.u + ((b + 1) * pass.q_len - 1) * c, c);
    }
  }
  cache.commit(pass.first_row, pass.batch, pass.q_len);
}

void Gpt::append(int64_t layer, const Pass& pass, const Qkv& qkv) {
  const KvCache& cache = *pass.cache;
  const int64_t kd = spec_.kv_dim(), n = pass.q_len * kd;
  for (int64_t b = 0; b < pass.batch; ++b) {
    const int64_t row = pass.first_row + b;
    const int64_t end = cache.length(row) * kd;
    ops_.copy(cache.k(layer, row) + end, qkv.k.f32() + b * n, n);
    ops_.copy(cache.v(layer, row) + end, qkv.v.f32() + b * n, n);
  }
}

void Gpt::attend_cache(int64_t layer, const Pass& pass, const Qkv& qkv) {
  append(layer, pass, qkv);
  const KvCache& cache = *pass.cache;
  const AttentionLayout layout{.q_row = spec_.n_embd,
                               .k_row = spec_.kv_dim(),
                               .v_row = spec_.kv_dim(),
                               .out_row = spec_.n_embd};
  attention_.set_layer(layer);
  BoundAttention& bound = attention_.bind_decode(kinds_[static_cast<size_t>(layer)], pass.batch,
                                                 pass.q_len, cache.capacity(), layout);
  heddle_attention_call call = {};
  call.q = qkv.q.data;
  call.k = cache.k(layer, pass.first_row);
  call.v = cache.v(layer, pass.first_row);
  call.out = block(layer).o;
  call.kv_len = cache.kv_len();
  call.workspace = workspace(bound.workspace_bytes());
  call.workspace_bytes = bound.workspace_bytes();
  bound.run(call);
}

}  // namespace heddle
