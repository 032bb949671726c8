// One pass over every op on a small micro-batch, for tests of determinism and of allocation.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "framework/core/rng.h"
#include "framework/device/ops.h"

namespace heddle::testing {

class EveryOp {
 public:
  EveryOp()
      : tokens_(kN),
        targets_(kN),
        index_memory_(3 * kN + kVocab + 2),
        prev_pos_(kBatch, 5),
        high_(kN * kC),
        low_(kN * kC) {
    Rng rng(11, "every op");
    for (auto& id : tokens_) id = static_cast<int32_t>(rng.below(kVocab));
    for (auto& id : targets_) id = static_cast<int32_t>(rng.below(kVocab));
    for (auto* t : tensors()) {
      t->resize(kSize);
      for (float& x : *t) x = 0.5f * rng.normal();
    }
    for (float& x : v_) x = x * x;
  }

  void run(Ops& ops) {
    float *x = x_.data(), *y = y_.data(), *h = h_.data(), *z = z_.data(), *s = s_.data();
    float *w = w_.data(), *g = g_.data();
    TokenIndex index{&index_memory_[0], &index_memory_[kN], &index_memory_[2 * kN],
                     &index_memory_[3 * kN + 1]};
    const Matrix table = matrix(w, kVocab, kC), dtable = matrix(g, kVocab, kC);
    ops.index_tokens(tokens_.data(), kN, kVocab, &index);
    ops.embed_norm_forward(tokens_.data(), kN, table, x, s);
    ops.smear_forward(x, kBatch, kT, kC, w, w + 24, nullptr, y, s + kN);
    ops.mix_norm_forward({w + 30, w + 31, -1.0f}, y, x, kN, kC, z, h, s + 2 * kN);
    ops.rope_norm_forward(rope(), matrix(h, kN, kC), s + 3 * kN);
    ops.value_embed_forward(x, kC, w, table, tokens_.data(), kHeads, matrix(y, kN, kC), s + 8 * kN);
    ops.relu2_forward(z, kN * kC);
    ops.matmul(matrix(z, kN, kC), false, matrix(w, kC, kC), true, matrix(y, kN, kC), 1.0f, 1.0f);

    Matrix dh = matrix(v_.data(), kN, kC);
    ops.head_loss(matrix(h, kN, kC), table, kVocab, 15.0f, targets_.data(),
                  matrix(scratch_.data(), kChunk, kVocab), s + 12 * kN, nullptr, &dh, &dtable);
    ops.head_logits(matrix(h, kChunk, kC), table, kVocab, 15.0f,
                    matrix(scratch_.data(), kChunk, kVocab));
    ops.relu2_backward(v_.data(), z, kN * kC);
    ops.rope_norm_backward(rope(), matrix(h, kN, kC), s + 3 * kN, dh);
    ops.value_embed_backward(dh, x, kC, w, table, tokens_.data(), index, kHeads, s + 8 * kN, g, y,
                             dtable);
    ops.mix_norm_backward({w + 30, w + 31, 1.0f}, y, h, s + 2 * kN, nullptr, x, z, kN, kC, y, z, g,
                          g + 1);
    ops.smear_backward(y, x, s + kN, kBatch, kT, kC, w, w + 24, z, g + 2, g + 26);
    ops.embed_norm_backward(z, x, s, index, dtable);
    ops.add(z, y, kN * kC);
    ops.copy(y, z, kN * kC);
    ops.add_exact(y, high_.data(), low_.data(), kN * kC);
    ops.round_exact(high_.data(), low_.data(), y, kN * kC);
    s[0] = static_cast<float>(ops.sum_squares(g, kVocab * kC));
    ops.adamw(&adamw_, g, w, m_.data(), v_.data(), kVocab * kC);
    auto muon = [&](int64_t i, int) {
      const int64_t rows = i % 2 == 0 ? kVocab : kC, cols = i % 2 == 0 ? kC : kVocab / 2;
      float* scratch = scratch_.data() + i * kVocab * kC;
      ops.muon_prepare(&muon_, g, m_.data() + i * kVocab * kC, rows, cols, scratch);
      ops.muon_finish(&muon_, scratch, s + 16 * kN + i * kVocab, 0.9f, rows, cols,
                      x_.data() + i * kVocab * kC);
    };
    ops.run_independent(2, std::ref(muon));
    muon(2, 0);
    muon(3, 0);
    ops.zero(scratch_.data(), 1000);
  }

  std::vector<std::vector<float>*> tensors() {
    return {&x_, &y_, &z_, &h_, &s_, &w_, &g_, &m_, &v_, &scratch_};
  }

 private:
  static constexpr int64_t kBatch = 6, kT = 37, kN = kBatch * kT, kC = 64, kHeads = 4, kVocab = 192;
  static constexpr int64_t kChunk = 50, kSize = 60000;

  RopeNorm rope() const {
    return {.cos = w_.data(),
            .sin = w_.data() + 2000,
            .seq_len = kT,
            .pos0 = prev_pos_.data(),
            .heads = kHeads,
            .head_dim = kC / kHeads,
            .norm = true,
            .scale = 1.2f};
  }

  AdamWValues adamw_ = AdamWStep{0.01f, 0.8f, 0.9f, 1e-8f, 0.1f, 3, 0.5f}.values();
  MuonValues muon_{0.01f, 0.9f, 0.1f, 0.5f};
  std::vector<int32_t> tokens_, targets_, index_memory_, prev_pos_;
  std::vector<double> high_, low_;
  std::vector<float> x_, y_, z_, h_, s_, w_, g_, m_, v_, scratch_;
};

}  // namespace heddle::testing
