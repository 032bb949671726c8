// What happens to q, k and v between their projection and attention.
#pragma once

#include "kernels/cpu/ops/math.h"
#include "kernels/cpu/ops/ops_table.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

HEDDLE_INLINE int64_t position(const Rope& op, int64_t n) {
  const int64_t t = n % op.seq_len;
  return op.pos0 == nullptr ? t : t + op.pos0[n / op.seq_len];
}

// A rotation keeps the length, so the norm's factor is known before it.
void rope_norm_forward(const Rope& op, int64_t begin, int64_t end) {
  const int64_t half = op.head_dim / 2;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t at = position(op, n) * half;
    const float *cos = op.cos + at, *sin = op.sin + at;
    for (int64_t head = 0; head < op.heads; ++head) {
      float* x1 = op.x + n * op.ld + head * op.head_dim;
      float* x2 = x1 + half;
      float scale = op.scale;
      if (op.norm) {
        const float rstd = reciprocal_rms(dot(x1, x1, op.head_dim), op.head_dim, op.eps);
        op.rstd[n * op.heads + head] = rstd;
        scale *= rstd;
      }
      each_vector(half, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
        const Vec a = io.load(x1 + i) * scale, b = io.load(x2 + i) * scale;
        const Vec c = io.load(cos + i), s = io.load(sin + i);
        io.store(x1 + i, a * c + b * s);
        io.store(x2 + i, b * c - a * s);
      });
    }
  }
}

// With y = scale * n, n = x * rstd: the norm's backward rstd * (scale * dy - n * mean(scale * dy .
// n)) is rstd * (scale * dy - y * mean(dy . y) / scale); then the rotation backwards.
void rope_norm_backward(const RopeGrad& grad, int64_t begin, int64_t end) {
  const Rope& op = grad.op;
  const int64_t half = op.head_dim / 2;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t at = position(op, n) * half;
    const float *cos = op.cos + at, *sin = op.sin + at;
    for (int64_t head = 0; head < op.heads; ++head) {
      float* d1 = op.x + n * op.ld + head * op.head_dim;
      float* d2 = d1 + half;
      const float* y1 = grad.y + n * grad.y_ld + head * op.head_dim;
      const float* y2 = y1 + half;
      float scale = op.scale, along = 0;
      if (op.norm) {
        const float rstd = op.rstd[n * op.heads + head];
        const float mean = dot(d1, y1, op.head_dim) / static_cast<float>(op.head_dim);
        along = rstd * mean / op.scale;
        scale *= rstd;
      }
      each_vector(half, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
        const Vec a = io.load(d1 + i) * scale - io.load(y1 + i) * along;
        const Vec b = io.load(d2 + i) * scale - io.load(y2 + i) * along;
        const Vec c = io.load(cos + i), s = io.load(sin + i);
        io.store(d1 + i, a * c - b * s);
        io.store(d2 + i, a * s + b * c);
      });
    }
  }
}

void value_embed_forward(const ValueEmbed& op, int64_t begin, int64_t end) {
  const int64_t dim = op.head_dim;
  for (int64_t n = begin; n < end; ++n) {
    const float* h = op.h + n * op.channels;
    for (int64_t k = 0; k < op.n_kv_head; ++k) {
      const float gate = 3.0f * sigmoid(dot(h, op.wg + k * kGateInputs, kGateInputs));
      op.gate[n * op.n_kv_head + k] = gate;
      const float* row = op.table + op.tokens[n] * op.table_ld + k * dim;
      float* v = op.v + n * op.v_ld + k * dim;
      each_vector(dim, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
        io.store(v + i, io.load(v + i) + gate * io.load(row + i));
      });
    }
  }
}

// In the order of ids, so that dv is read once for the table and for the gate.
void value_embed_backward(const ValueEmbedGrad& op, int64_t begin, int64_t end, double* sums) {
  const int64_t dim = op.head_dim;
  for (int64_t id = begin; id < end; ++id) {
    const float* row = op.table + op.ids[id] * op.table_ld;
    float* drow = op.dtable + op.ids[id] * op.dtable_ld;
    for (int64_t r = op.starts[id]; r < op.starts[id + 1]; ++r) {
      const int64_t n = op.order[r];
      const float *h = op.h + n * op.channels, *dv = op.dv + n * op.dv_ld;
      float* dh = op.dh + n * op.channels;
      for (int64_t k = 0; k < op.n_kv_head; ++k) {
        const float gate = op.gate[n * op.n_kv_head + k];
        Sum along;
        each_vector(dim, [&](int64_t i, auto io, int slot) HEDDLE_LAMBDA {
          const Vec d = io.load(dv + k * dim + i);
          along.part[slot] += d * io.load(row + k * dim + i);
          float* out = drow + k * dim + i;
          io.store(out, io.load(out) + gate * d);
        });
        // gate = 3 s: d gate / d argument = 3 s (1 - s)
        const float ds = along.total() * gate * (1.0f - gate * (1.0f / 3.0f));
        for (int64_t i = 0; i < kGateInputs; ++i) {
          sums[k * kGateInputs + i] += static_cast<double>(ds) * h[i];
          dh[i] += ds * op.wg[k * kGateInputs + i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
