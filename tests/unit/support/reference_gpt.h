// The model's forward pass once more, in fp64 and as plainly as it can be written: what gradients
// are checked against by finite differences, for any combination of switches. Only the rotary table
// is rounded to fp32, as it is part of the model.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/model/params.h"
#include "framework/model/spec.h"

namespace heddle::testing {

class ReferenceGpt {
 public:
  using Vec = std::vector<double>;

  ReferenceGpt(const ModelSpec& spec, const ParamLayout& layout) : s_(spec), layout_(layout) {}

  // Sum of cross-entropies over targets >= 0; `params` is a flat buffer in fp64.
  double loss(const Vec& params, const std::vector<int32_t>& tokens,
              const std::vector<int32_t>& targets, int64_t batch) {
    p_ = params.data();
    const int64_t t = static_cast<int64_t>(tokens.size()) / batch;
    double sum = 0.0;
    for (int64_t b = 0; b < batch; ++b) {
      const std::vector<int32_t> row(tokens.begin() + b * t, tokens.begin() + (b + 1) * t);
      const std::vector<Vec> z = logits(row);
      for (int64_t i = 0; i < t; ++i) {
        const int32_t target = targets[at(b * t + i)];
        if (target >= 0) sum += cross_entropy(z[at(i)], target);
      }
    }
    return sum;
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

  const double* param(const std::string& name) const { return p_ + layout_.at(name).offset; }
  const double* block_param(int64_t layer, const std::string& name) const {
    return param("transformer.h." + std::to_string(layer) + "." + name + ".weight");
  }
  static Vec normed(const double* x, int64_t n) {
    double squares = 0.0;
    for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1.1920929e-7);
    Vec y(at(n));
    for (int64_t i = 0; i < n; ++i) y[at(i)] = r * x[i];
    return y;
  }
  static Vec normed(const Vec& x) { return normed(x.data(), static_cast<int64_t>(x.size())); }
  // W x, W (rows, x.size())
  static Vec product(const double* w, int64_t rows, const Vec& x) {
    Vec y(at(rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[at(r)] += w[at(r) * x.size() + c] * x[c];
    }
    return y;
  }
  static double cross_entropy(const Vec& z, int32_t target) {
    double sum = 0.0;
    for (const double v : z) sum += std::exp(v - z[at(target)]);
    return std::log(sum);
  }

  std::vector<Vec> embed(const std::vector<int32_t>& tokens) const {
    std::vector<Vec> u;
    for (const int32_t id : tokens) {
      u.push_back(normed(param("transformer.wte.weight") + id * s_.n_embd, s_.n_embd));
    }
    if (!s_.smear) return u;
    std::vector<Vec> x = u;
    for (size_t t = 1; t < u.size(); ++t) {
      const double z =
          product(param("smear_gate.weight"), 1, Vec(u[t].begin(), u[t].begin() + 24))[0];
      const double g = param("smear_lambda")[0] * sigmoid(z);
      for (size_t c = 0; c < u[t].size(); ++c) x[t][c] += g * u[t - 1][c];
    }
    return x;
  }

  // RoPE, norm and scale of one head at position t.
  Vec turn(const double* x, int64_t t) const {
    const int64_t d = s_.head_dim, half = d / 2;
    Vec y(at(d));
    for (int64_t j = 0; j < half; ++j) {
      const float inverse = 1.0f / std::pow(static_cast<float>(s_.rope_base),
                                            static_cast<float>(2 * j) / static_cast<float>(d));
      const float angle = static_cast<float>(t) * inverse;
      const double c = std::cos(angle), n = std::sin(angle);
      y[at(j)] = x[j] * c + x[j + half] * n;
      y[at(j + half)] = -x[j] * n + x[j + half] * c;
    }
    if (s_.qk_norm) y = normed(y);
    for (double& v : y) v *= s_.qk_scale;
    return y;
  }

  // Heads of a projection at position t, each through turn().
  Vec turned(const Vec& x, int64_t t) const {
    Vec y;
    for (size_t begin = 0; begin < x.size(); begin += at(s_.head_dim)) {
      const Vec head = turn(x.data() + begin, t);
      y.insert(y.end(), head.begin(), head.end());
    }
    return y;
  }

  Vec attend(const std::vector<Vec>& q, const std::vector<Vec>& k, const std::vector<Vec>& v,
             int64_t t, int64_t window) const {
    const int64_t d = s_.head_dim, group = s_.n_head / s_.n_kv_head;
    Vec out(at(s_.n_embd));
    for (int64_t h = 0; h < s_.n_head; ++h) {
      const int64_t from = window < 0 ? 0 : std::max<int64_t>(0, t - window);
      const size_t qo = at(h * d), ko = at(h / group * d);
      Vec weight;
      double sum = 0.0;
      for (int64_t j = from; j <= t; ++j) {
        double dot = 0.0;
        for (size_t i = 0; i < at(d); ++i) dot += q[at(t)][qo + i] * k[at(j)][ko + i];
        weight.push_back(std::exp(dot / std::sqrt(static_cast<double>(d))));
        sum += weight.back();
      }
      for (int64_t j = from; j <= t; ++j) {
        const double p = weight[at(j - from)] / sum;
        for (size_t i = 0; i < at(d); ++i) out[qo + i] += p * v[at(j)][ko + i];
      }
    }
    return out;
  }

  void attention_branch(int64_t layer, const std::vector<int32_t>& tokens,
                        std::vector<Vec>& x) const {
    const int64_t kd = s_.kv_dim(), d = s_.head_dim;
    std::vector<Vec> q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vec h = normed(x[t]);
      q.push_back(
          turned(product(block_param(layer, "attn.c_q"), s_.n_embd, h), static_cast<int64_t>(t)));
      k.push_back(turned(product(block_param(layer, "attn.c_k"), kd, h), static_cast<int64_t>(t)));
      v.push_back(product(block_param(layer, "attn.c_v"), kd, h));
      if (!s_.has_value_embed(layer)) continue;
      const Vec gate =
          product(block_param(layer, "attn.ve_gate"), s_.n_kv_head, Vec(h.begin(), h.begin() + 12));
      const double* ve =
          param("value_embeds." + std::to_string(layer) + ".weight") + tokens[t] * kd;
      for (int64_t i = 0; i < kd; ++i) v[t][at(i)] += 3.0 * sigmoid(gate[at(i / d)]) * ve[i];
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Vec o = attend(q, k, v, static_cast<int64_t>(t), s_.windows[at(layer)]);
      const Vec y = product(block_param(layer, "attn.c_proj"), s_.n_embd, o);
      for (size_t c = 0; c < y.size(); ++c) x[t][c] += y[c];
    }
  }

  void mlp_branch(int64_t layer, Vec& x) const {
    Vec a = product(block_param(layer, "mlp.c_fc"), s_.mlp_dim(), normed(x));
    for (double& v : a) v = v > 0.0 ? v * v : 0.0;
    const Vec y = product(block_param(layer, "mlp.c_proj"), s_.n_embd, a);
    for (size_t c = 0; c < y.size(); ++c) x[c] += y[c];
  }

  std::vector<Vec> logits(const std::vector<int32_t>& tokens) const {
    std::vector<Vec> x = embed(tokens), middle;
    const std::vector<Vec> x0 = x;
    for (int64_t i = 0; i < s_.n_layer; ++i) {
      const double a = s_.resid_lambdas ? param("resid_lambdas")[i] : 1.0;
      const double b = s_.x0_lambdas ? param("x0_lambdas")[i] : 0.0;
      for (size_t t = 0; t < x.size(); ++t) {
        for (size_t c = 0; c < x[t].size(); ++c) x[t][c] = a * x[t][c] + b * x0[t][c];
      }
      attention_branch(i, tokens, x);
      for (Vec& row : x) mlp_branch(i, row);
      if (i == s_.n_layer / 2) middle = x;
    }
    std::vector<Vec> out;
    for (size_t t = 0; t < x.size(); ++t) {
      if (s_.backout) {
        for (size_t c = 0; c < x[t].size(); ++c)
          x[t][c] -= param("backout_lambda")[0] * middle[t][c];
      }
      Vec z = product(param("lm_head.weight"), s_.vocab_size, normed(x[t]));
      for (double& v : z) v = s_.softcap > 0.0 ? s_.softcap * std::tanh(v / s_.softcap) : v;
      out.push_back(z);
    }
    return out;
  }

  ModelSpec s_;
  ParamLayout layout_;
  const double* p_ = nullptr;
};

}  // namespace heddle::testing
