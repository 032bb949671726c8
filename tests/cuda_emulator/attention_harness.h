// Attention problems on the emulated device, against the fp64 definition on the same rounded
// inputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/reference/attention.h"
#include "tests/unit/support/golden_attention.h"

namespace heddle::kernels::cuda::testing {

struct Case {
  int64_t batch = 1, q_len = 1, k_len = 1;
  int n_head = 1, n_kv_head = 1, head_dim = 8;
  int64_t window_left = -1, q_pos0 = 0, k_pos0 = 0;
  bool causal = true;
  bool padded = false;               // gaps of 8 and 16 elements between heads and rows
  std::vector<int32_t> kv_len = {};  // decode

  Case bottom_right() const {
    Case c = *this;
    c.q_pos0 = k_len - q_len;
    return c;
  }
};
inline std::ostream& operator<<(std::ostream& os, const Case& c) {
  os << "B " << c.batch << " Tq " << c.q_len << " Tk " << c.k_len << " H " << c.n_head << " K "
     << c.n_kv_head << " D " << c.head_dim << " W " << c.window_left << " q_pos0 " << c.q_pos0
     << " k_pos0 " << c.k_pos0 << (c.causal ? " causal" : " full") << (c.padded ? " padded" : "");
  for (const int32_t n : c.kv_len) os << " kv_len " << n;
  return os;
}

inline Case case_of(const heddle::testing::GoldenAttention& g) {
  Case c{.batch = g.batch, .q_len = g.q_len, .k_len = g.k_len};
  c.n_head = static_cast<int>(g.n_head), c.n_kv_head = static_cast<int>(g.n_kv_head);
  c.head_dim = static_cast<int>(g.head_dim);
  c.window_left = g.window_left, c.q_pos0 = g.q_pos0, c.k_pos0 = g.k_pos0;
  return c;
}

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

inline size_t size_of(Element e) {
  return e == Element::kF32 ? 4 : 2;
}
inline void encode(Element e, float x, unsigned char* to) {
  if (e == Element::kF32) std::memcpy(to, &x, 4);
  const uint16_t bits = e == Element::kBf16 ? __float2bfloat16_rn(x).bits : __float2half_rn(x).bits;
  if (e != Element::kF32) std::memcpy(to, &bits, 2);
}
inline float decode(Element e, const unsigned char* from) {
  float x = 0.0f;
  uint16_t bits = 0;
  if (e == Element::kF32) return std::memcpy(&x, from, 4), x;
  std::memcpy(&bits, from, 2);
  return e == Element::kBf16 ? __bfloat162float({bits}) : __half2float({bits});
}
inline float rounded(Element e, float x) {
  unsigned char bytes[4];
  encode(e, x, bytes);
  return decode(e, bytes);
}

// A (B, T, heads, D) tensor on the device; gaps and what is not set hold 0xFF.
class DeviceTensor {
 public:
  DeviceTensor(Element element, int64_t batch, int64_t tokens, int heads, int dim, bool padded)
      : element_(element), batch_(batch), tokens_(tokens), heads_(heads), dim_(dim) {
    strides.head = dim + (padded ? 8 : 0);
    strides.token = heads * strides.head + (padded ? 16 : 0);
    strides.batch = tokens * strides.token + (padded ? 8 : 0);
    const int64_t elements = batch * tokens == 0
                                 ? 0
                                 : (batch - 1) * strides.batch + (tokens - 1) * strides.token +
                                       (heads - 1) * strides.head + dim;
    bytes_.assign(static_cast<size_t>(elements) * size_of(element), 0xff);
    check(cudaMalloc(&data, bytes_.size()));
  }
  ~DeviceTensor() { (void)cudaFree(data); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  int64_t size() const { return batch_ * tokens_ * heads_ * dim_; }
  void set(const std::vector<float>& values) {
    visit([&](size_t n, unsigned char* at) { encode(element_, values[n], at); });
    check(cudaMemcpy(data, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice));
  }
  // Contiguous; also says whether a gap was written.
  std::vector<float> get() {
    const std::vector<unsigned char> before = bytes_;
    check(cudaMemcpy(bytes_.data(), data, bytes_.size(), cudaMemcpyDeviceToHost));
    std::vector<float> values(static_cast<size_t>(size()));
    std::vector<unsigned char> rest = bytes_;
    visit([&](size_t n, unsigned char* at) {
      values[n] = decode(element_, at);
      std::memset(rest.data() + (at - bytes_.data()), 0xff, size_of(element_));
    });
    for (const unsigned char byte : rest) {
      if (byte != 0xff) {
        ADD_FAILURE() << "wrote into a gap";
        break;
      }
    }
    return values;
  }

  void* data = nullptr;
  TensorStrides strides;

 private:
  template <class F>
  void visit(F&& f) {
    size_t n = 0;
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int64_t h = 0; h < heads_; ++h) {
          for (int64_t d = 0; d < dim_; ++d) {
            const int64_t at = b * strides.batch + t * strides.token + h * strides.head + d;
            f(n++, bytes_.data() + static_cast<size_t>(at) * size_of(element_));
          }
        }
      }
    }
  }
  Element element_;
  int64_t batch_, tokens_, heads_, dim_;
  std::vector<unsigned char> bytes_;
};

// Uniform in [-gain, gain), rounded to the element type.
inline std::vector<float> noise(Element e, int64_t count, uint32_t seed, float gain) {
  std::vector<float> values;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t u = ((i + 1) * 2654435761u) ^ (seed * 0x9E3779B9u);
    u ^= u >> 15;
    u *= 2246822519u;
    u ^= u >> 13;
    values.push_back(rounded(e, gain * (static_cast<float>(u >> 8) / 8388608.0f - 1.0f)));
  }
  return values;
}

struct Results {
  std::vector<float> out, lse, dq, dk, dv;
};
struct Exact {
  std::vector<double> out, lse, dq, dk, dv;
};

// One problem in one element type.
class Bench {
 public:
  Bench(const Case& c, Element element)
      : case_(c),
        element_(element),
        q_(query_tensor()),
        k_(key_tensor()),
        v_(key_tensor()),
        out_(query_tensor()),
        dout_(query_tensor()),
        dq_(query_tensor()),
        dk_(key_tensor()),
        dv_(key_tensor()) {
    problem.element = element;
    problem.batch = c.batch;
    problem.n_head = c.n_head;
    problem.n_kv_head = c.n_kv_head;
    problem.head_dim = c.head_dim;
    problem.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    problem.mask = {c.q_len, c.k_len, c.q_pos0, c.k_pos0, c.window_left, c.causal};
    problem.q = q_.strides, problem.k = k_.strides, problem.v = v_.strides;
    problem.out = out_.strides, problem.dout = dout_.strides;
    problem.dq = dq_.strides, problem.dk = dk_.strides, problem.dv = dv_.strides;
    problem.lse_head = c.q_len;
    problem.lse_batch = c.n_head * c.q_len;
    problem.align_bytes = element == Element::kF32 ? 4 : 16;
    set_inputs(noise(element, q_.size(), 1, 2.0f), noise(element, k_.size(), 2, 2.0f),
               noise(element, v_.size(), 3, 1.5f), noise(element, q_.size(), 4, 1.5f));
    check(cudaMalloc(&lse_, lse_count() * 4));
    if (!c.kv_len.empty()) {
      check(cudaMalloc(&kv_len_, c.kv_len.size() * 4));
      check(cudaMemcpy(kv_len_, c.kv_len.data(), c.kv_len.size() * 4, cudaMemcpyHostToDevice));
    }
  }
  ~Bench() {
    (void)cudaFree(lse_);
    (void)cudaFree(kv_len_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void set_inputs(std::vector<float> q, std::vector<float> k, std::vector<float> v,
                  std::vector<float> dout) {
    qs = std::move(q), ks = std::move(k), vs = std::move(v), douts = std::move(dout);
    q_.set(qs), k_.set(ks), v_.set(vs), dout_.set(douts);
  }

  // Runs the variant on NaN-filled outputs and workspace.
  void run(const Variant& v) {
    problem.op = v.op;
    AttentionPointers at;
    at.q = q_.data, at.k = k_.data, at.v = v_.data, at.out = out_.data, at.lse = lse_;
    at.dout = dout_.data, at.dq = dq_.data, at.dk = dk_.data, at.dv = dv_.data;
    at.kv_len = kv_len_;
    const size_t bytes = v.workspace_bytes(problem);
    check(cudaMalloc(&at.workspace, bytes));
    const cudaError_t error = v.run(problem, at, nullptr);
    (void)cudaFree(at.workspace);
    check(error);
  }
  const Variant& variant(Operation op, bool deterministic = false) {
    problem.op = op;
    problem.deterministic = deterministic;
    const Variant* v = choose(problem);
    if (!v) throw std::runtime_error("no variant takes this problem");
    return *v;
  }

  Results attended() {
    Results r;
    r.out = out_.get();
    r.lse.resize(lse_count());
    check(cudaMemcpy(r.lse.data(), lse_, r.lse.size() * 4, cudaMemcpyDeviceToHost));
    return r;
  }
  Results gradients() {
    Results r;
    r.dq = dq_.get(), r.dk = dk_.get(), r.dv = dv_.get();
    return r;
  }

  Exact expected(Operation op) const {
    const Case& c = case_;
    reference::AttentionShape s;
    s.batch = c.batch, s.q_len = c.q_len, s.k_len = c.k_len;
    s.n_head = c.n_head, s.n_kv_head = c.n_kv_head, s.head_dim = c.head_dim;
    s.scale = problem.scale, s.causal = c.causal, s.window_left = c.window_left;
    s.q_pos0 = c.q_pos0, s.k_pos0 = c.k_pos0;
    const auto queries = reference::contiguous(c.q_len, c.n_head, c.head_dim);
    const auto keys = reference::contiguous(c.k_len, c.n_kv_head, c.head_dim);
    const std::vector<double> q(qs.begin(), qs.end()), k(ks.begin(), ks.end()),
        v(vs.begin(), vs.end()), dout(douts.begin(), douts.end());
    Exact e;
    e.out.resize(q.size()), e.lse.resize(lse_count());
    if (op == Operation::kDecode) {
      reference::attention_decode<double, double, double>(s, {q.data(), queries}, {k.data(), keys},
                                                          {v.data(), keys}, c.kv_len.data(),
                                                          {e.out.data(), queries}, e.lse.data());
      return e;
    }
    reference::attention_forward<double, double, double>(s, {q.data(), queries}, {k.data(), keys},
                                                         {v.data(), keys}, {e.out.data(), queries},
                                                         e.lse.data());
    if (op == Operation::kForward) return e;
    e.dq.resize(q.size()), e.dk.resize(k.size()), e.dv.resize(v.size());
    reference::attention_backward<double, double>(
        s, {q.data(), queries}, {k.data(), keys}, {v.data(), keys}, {dout.data(), queries},
        {e.dq.data(), queries}, {e.dk.data(), keys}, {e.dv.data(), keys});
    return e;
  }

  size_t lse_count() const { return static_cast<size_t>(case_.batch * case_.n_head * case_.q_len); }

  AttentionProblem problem;
  std::vector<float> qs, ks, vs, douts;

 private:
  DeviceTensor query_tensor() const {
    return {element_, case_.batch, case_.q_len, case_.n_head, case_.head_dim, case_.padded};
  }
  DeviceTensor key_tensor() const {
    return {element_, case_.batch, case_.k_len, case_.n_kv_head, case_.head_dim, case_.padded};
  }

  Case case_;
  Element element_;
  DeviceTensor q_, k_, v_, out_, dout_, dq_, dk_, dv_;
  float* lse_ = nullptr;
  int32_t* kv_len_ = nullptr;
};

// Relative error of the whole and largest error, as attention-cases sets them per element type.
struct Gate {
  double relative, largest;
  double least = 0.03;  // root mean square below which a tensor counts as cancelled
};
inline Gate out_gate(Element e) {
  return e == Element::kF32   ? Gate{3e-6, 1e-5}
         : e == Element::kF16 ? Gate{6e-4, 1e-3}
                              : Gate{4e-3, 8e-3};
}
inline Gate gradient_gate(Element e) {
  return e == Element::kF32   ? Gate{1e-5, 3e-5}
         : e == Element::kF16 ? Gate{1.2e-3, 2e-3, 0.1}
                              : Gate{8e-3, 1.5e-2, 0.1};
}

inline void expect_close(const char* name, const std::vector<float>& got,
                         const std::vector<double>& want, Gate gate) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double error = 0.0, norm = 0.0, worst = 0.0, top = 1.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    error += difference * difference;
    norm += want[i] * want[i];
    worst = difference > worst || std::isnan(difference) ? difference : worst;
    top = std::max(top, std::abs(want[i]));
  }
  // What cancels to nothing is held to the rounding of its terms.
  const double least = gate.least * std::sqrt(static_cast<double>(want.size()));
  EXPECT_LE(std::sqrt(error), gate.relative * std::max(std::sqrt(norm), least)) << name;
  EXPECT_LE(worst, gate.largest * top) << name;
}

// Against numbers of unrounded inputs: at most twice the error of an exact computation on rounded
// inputs whose results are rounded too.
inline void expect_twice_exact(const char* name, Element e, const std::vector<float>& got,
                               const std::vector<double>& exact, const std::vector<float>& golden,
                               Gate gate) {
  double error = 0.0, allowed = 0.0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double want = golden[i], best = rounded(e, static_cast<float>(exact[i]));
    error += (got[i] - want) * (got[i] - want);
    allowed += (best - want) * (best - want);
  }
  const double least = gate.least * std::sqrt(static_cast<double>(golden.size()));
  EXPECT_LE(std::sqrt(error), 2.0 * std::sqrt(allowed) + 0.5 * gate.relative * least) << name;
}

inline void expect_lse(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << "lse " << i;
    } else {
      ASSERT_LE(std::abs(got[i] - want[i]), 1e-5 + 2e-6 * std::abs(want[i])) << "lse " << i;
    }
  }
}

// Forward and backward (or decode) of the variants that are chosen, against the definition.
inline void check_case(const Case& c, Element element, bool deterministic = false) {
  SCOPED_TRACE(::testing::PrintToString(c));
  Bench bench(c, element);
  const bool steps = !c.kv_len.empty();
  const Exact want = bench.expected(steps ? Operation::kDecode : Operation::kBackward);
  bench.run(bench.variant(steps ? Operation::kDecode : Operation::kForward));
  const Results got = bench.attended();
  expect_close("out", got.out, want.out, out_gate(element));
  expect_lse(got.lse, want.lse);
  if (steps) return;
  bench.run(bench.variant(Operation::kBackward, deterministic));
  const Results gradients = bench.gradients();
  expect_close("dq", gradients.dq, want.dq, gradient_gate(element));
  expect_close("dk", gradients.dk, want.dk, gradient_gate(element));
  expect_close("dv", gradients.dv, want.dv, gradient_gate(element));
}

}  // namespace heddle::kernels::cuda::testing
