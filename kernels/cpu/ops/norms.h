// Embedding, smear and the residual stream: kernels over rows that end or begin with an RMS norm.
// A row is read twice; the second time it comes from the first-level cache.
#pragma once

#include "kernels/cpu/ops/math.h"
#include "kernels/cpu/ops/ops_table.h"

namespace heddle::kernels::HEDDLE_ISA {
namespace {

void embed_norm_forward(const EmbedNorm& op, int64_t begin, int64_t end) {
  const int64_t channels = op.channels;
  for (int64_t n = begin; n < end; ++n) {
    const float* row = op.table + op.tokens[n] * op.table_ld;
    float* u = op.u + n * channels;
    const float rstd = reciprocal_rms(dot(row, row, channels), channels, op.eps);
    op.rstd[n] = rstd;
    each_vector(channels, [&](int64_t i, auto io, int)
                              HEDDLE_LAMBDA { io.store(u + i, io.load(row + i) * rstd); });
  }
}

void embed_norm_backward(const EmbedNormGrad& op, int64_t begin, int64_t end) {
  const int64_t channels = op.channels;
  for (int64_t id = begin; id < end; ++id) {
    float* grad = op.dtable + op.ids[id] * op.dtable_ld;
    for (int64_t r = op.starts[id]; r < op.starts[id + 1]; ++r) {
      const int64_t n = op.order[r];
      const float *du = op.du + n * channels, *u = op.u + n * channels;
      const float rstd = op.rstd[n];
      const float mean = dot(du, u, channels) / static_cast<float>(channels);
      each_vector(channels, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
        io.store(grad + i, io.load(grad + i) + rstd * (io.load(du + i) - io.load(u + i) * mean));
      });
    }
  }
}

void smear_forward(const Smear& op, int64_t begin, int64_t end) {
  const int64_t channels = op.channels;
  for (int64_t n = begin; n < end; ++n) {
    const float *u = op.u + n * channels, *before = u - channels;
    float* x = op.x + n * channels;
    if (n % op.seq_len == 0) {
      before = op.prev == nullptr ? nullptr : op.prev + n / op.seq_len * channels;
    }
    if (before == nullptr) {
      op.gate[n] = 0;
      each_vector(channels,
                  [&](int64_t i, auto io, int) HEDDLE_LAMBDA { io.store(x + i, io.load(u + i)); });
      continue;
    }
    const float gate = sigmoid(dot(u, op.w, kSmearInputs));
    op.gate[n] = gate;
    const float weight = op.lambda * gate;
    each_vector(channels, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
      io.store(x + i, io.load(u + i) + weight * io.load(before + i));
    });
  }
}

// du_t = dx_t + lambda gate_{t+1} dx_{t+1}, and in the first 24 channels + w ds_t, with ds the
// gradient of the gate's argument: lambda (dx_t . u_{t-1}) gate (1 - gate).
void smear_backward(const SmearGrad& op, int64_t begin, int64_t end, double* sums) {
  const int64_t channels = op.channels;
  for (int64_t n = begin; n < end; ++n) {
    const float *dx = op.dx + n * channels, *u = op.u + n * channels;
    float* du = op.du + n * channels;
    const int64_t t = n % op.seq_len;
    const bool last = t + 1 == op.seq_len;
    const float weight = last ? 0.0f : op.lambda * op.gate[n + 1];
    const float* next = last ? dx : dx + channels;
    each_vector(channels, [&](int64_t i, auto io, int) HEDDLE_LAMBDA {
      io.store(du + i, io.load(dx + i) + weight * io.load(next + i));
    });
    if (t == 0) continue;
    const float gate = op.gate[n];
    const float along = dot(dx, u - channels, channels);
    const float ds = op.lambda * along * gate * (1.0f - gate);
    for (int64_t i = 0; i < kSmearInputs; ++i) {
      du[i] += ds * op.w[i];
      sums[i] += static_cast<double>(ds) * u[i];
    }
    sums[kSmearInputs] += static_cast<double>(gate) * along;
  }
}

template <bool kMixes, bool kHasZ>
HEDDLE_INLINE void mix_norm_rows(const MixNorm& op, int64_t begin, int64_t end) {
  const int64_t channels = op.channels;
  const float a = op.a, b = op.b;
  for (int64_t n = begin; n < end; ++n) {
    const float* x = op.x + n * channels;
    const float* z = kHasZ ? op.z + n * channels : nullptr;
    float* y = kMixes ? op.y + n * channels : nullptr;
    float* h = op.h + n * channels;
    Sum squares;
    each_vector(channels, [&](int64_t i, auto io, int slot) HEDDLE_LAMBDA {
      Vec mixed = io.load(x + i);
      if constexpr (kMixes) mixed *= a;
      if constexpr (kHasZ) mixed += io.load(z + i) * b;
      if constexpr (kMixes) io.store(y + i, mixed);
      squares.part[slot] += mixed * mixed;
    });
    const float rstd = reciprocal_rms(squares.total(), channels, op.eps);
    op.rstd[n] = rstd;
    const float* mixed = kMixes ? y : x;
    each_vector(channels, [&](int64_t i, auto io, int)
                              HEDDLE_LAMBDA { io.store(h + i, io.load(mixed + i) * rstd); });
  }
}

void mix_norm_forward(const MixNorm& op, int64_t begin, int64_t end) {
  if (op.y == nullptr) {
    mix_norm_rows<false, false>(op, begin, end);
  } else {
    op.z == nullptr ? mix_norm_rows<true, false>(op, begin, end)
                    : mix_norm_rows<true, true>(op, begin, end);
  }
}

template <bool kHasX, bool kHasZ>
HEDDLE_INLINE void mix_norm_grad_rows(const MixNormGrad& op, int64_t begin, int64_t end,
                                      double* sums) {
  const int64_t channels = op.channels;
  const float a = op.a, b = op.b;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t at = n * channels;
    const float *dh = op.dh + at, *h = op.h + at;
    const float rstd = op.rstd[n];
    const float mean = dot(dh, h, channels) / static_cast<float>(channels);
    float* dx = op.dx + at;
    const float* x = kHasX ? op.x + at : nullptr;
    const float* z = kHasZ ? op.z + at : nullptr;
    float* dz = kHasZ ? op.dz + at : nullptr;
    Sum along_x, along_z;
    const auto pass = [&](const float* dy) HEDDLE_LAMBDA {
      each_vector(channels, [&](int64_t i, auto io, int slot) HEDDLE_LAMBDA {
        Vec total = rstd * (io.load(dh + i) - io.load(h + i) * mean);
        if (dy != nullptr) total += io.load(dy + i);
        if constexpr (kHasX) along_x.part[slot] += total * io.load(x + i);
        if constexpr (kHasZ) {
          along_z.part[slot] += total * io.load(z + i);
          io.store(dz + i, io.load(dz + i) + b * total);
        }
        io.store(dx + i, a * total);
      });
    };
    if (op.dy == nullptr) {
      pass(nullptr);
    } else {
      pass(op.dy + at);
    }
    if constexpr (kHasX) sums[0] += along_x.total();
    if constexpr (kHasZ) sums[1] += along_z.total();
  }
}

void mix_norm_backward(const MixNormGrad& op, int64_t begin, int64_t end, double* sums) {
  if (op.x == nullptr) {
    op.z == nullptr ? mix_norm_grad_rows<false, false>(op, begin, end, sums)
                    : mix_norm_grad_rows<false, true>(op, begin, end, sums);
  } else {
    op.z == nullptr ? mix_norm_grad_rows<true, false>(op, begin, end, sums)
                    : mix_norm_grad_rows<true, true>(op, begin, end, sums);
  }
}

}  // namespace
}  // namespace heddle::kernels::HEDDLE_ISA
