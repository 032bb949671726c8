// Attention problems on hostile memory: every tensor ends at an unreadable page, everything that
// is not an input starts as NaN, and gaps between rows must stay as they were.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/cpu/attention/attention.h"
#include "kernels/reference/attention.h"

namespace heddle::kernels::cpu::testing {

// `count` floats that end exactly at a page without access; every byte starts as 0xFF (NaN).
class GuardedFloats {
 public:
  explicit GuardedFloats(int64_t count) : count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    open_bytes_ = (bytes + page - 1) / page * page;
    map_bytes_ = open_bytes_ + page;
    base_ = static_cast<char*>(
        mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + open_bytes_, page, PROT_NONE), 0);
    data_ = reinterpret_cast<float*>(base_ + open_bytes_ - bytes);
    poison();
  }
  ~GuardedFloats() { munmap(base_, map_bytes_); }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;

  void poison() { std::memset(base_, 0xFF, open_bytes_); }
  float* data() const { return data_; }
  int64_t size() const { return count_; }

 private:
  int64_t count_;
  size_t open_bytes_ = 0, map_bytes_ = 0;
  char* base_ = nullptr;
  float* data_ = nullptr;
};

// Element i of the pseudo-random sequence s, uniform in [-1, 1).
inline float hash_value(uint32_t i, uint32_t s) {
  uint32_t u = ((i + 1) * 2654435761u) ^ (s * 0x9E3779B9u);
  u ^= u >> 15;
  u *= 2246822519u;
  u ^= u >> 13;
  return static_cast<float>(u >> 8) / 8388608.0f - 1.0f;
}

// A (B, T, heads, D) tensor somewhere in a buffer.
struct Tensor {
  std::shared_ptr<GuardedFloats> buffer;
  float* data = nullptr;
  TensorStrides strides;
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;

  float* row(int64_t b, int64_t t, int64_t h) const {
    return data + b * strides.batch + t * strides.token + h * strides.head;
  }
  template <class Visit>  // visit(element, running number)
  void for_each(Visit&& visit) const {
    uint32_t n = 0;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < dim; ++d) visit(row(b, t, h)[d], n++);
        }
      }
    }
  }
  void fill(uint32_t seed, float gain) const {
    for_each([&](float& x, uint32_t n) { x = gain * hash_value(n, seed); });
  }
  void fill_with(float value) const {
    for_each([&](float& x, uint32_t) { x = value; });
  }
  // Contiguous (B, T, heads, D) copy.
  std::vector<double> values() const {
    std::vector<double> out;
    out.reserve(static_cast<size_t>(batch * tokens * heads * dim));
    for_each([&](const float& x, uint32_t) { out.push_back(x); });
    return out;
  }
};

enum class Layout {
  kContiguous,
  kPadded,       // rows of 24 elements more, heads of 5 more, sequences of 7 more
  kInterleaved,  // q, k, v side by side in one row: (B, T, (H + 2K) D); needs q_len == k_len
};

struct Case {
  int64_t batch = 1, q_len = 1, k_len = 1, n_head = 1, n_kv_head = 1, head_dim = 8;
  int64_t window_left = -1;
  int64_t q_pos0 = 0, k_pos0 = 0;
  bool causal = true;
  Layout layout = Layout::kContiguous;
  float gain = 2.0f;  // of q and k

  // Queries and keys end at the same position.
  Case& bottom_right() {
    q_pos0 = k_len - q_len;
    return *this;
  }
};

inline std::ostream& operator<<(std::ostream& os, const Case& c) {
  return os << "B " << c.batch << " Tq " << c.q_len << " Tk " << c.k_len << " H " << c.n_head
            << " K " << c.n_kv_head << " D " << c.head_dim << " W " << c.window_left << " q_pos0 "
            << c.q_pos0 << " k_pos0 " << c.k_pos0 << (c.causal ? " causal" : " full") << " layout "
            << static_cast<int>(c.layout);
}

inline Tensor make_tensor(int64_t batch, int64_t tokens, int64_t heads, int64_t dim, bool padded) {
  Tensor t;
  t.batch = batch;
  t.tokens = tokens;
  t.heads = heads;
  t.dim = dim;
  t.strides.head = dim + (padded ? 5 : 0);
  t.strides.token = heads * t.strides.head + (padded ? 24 : 0);
  t.strides.batch = tokens * t.strides.token + (padded ? 7 : 0);
  int64_t size = 0;
  if (batch > 0 && tokens > 0) {
    size = (batch - 1) * t.strides.batch + (tokens - 1) * t.strides.token +
           (heads - 1) * t.strides.head + dim;
  }
  t.buffer = std::make_shared<GuardedFloats>(size);
  t.data = t.buffer->data();
  return t;
}

// q, k and v (or their gradients) in the case's layout.
struct Triple {
  Tensor q, k, v;

  explicit Triple(const Case& c) {
    const bool padded = c.layout == Layout::kPadded;
    if (c.layout != Layout::kInterleaved) {
      q = make_tensor(c.batch, c.q_len, c.n_head, c.head_dim, padded);
      k = make_tensor(c.batch, c.k_len, c.n_kv_head, c.head_dim, padded);
      v = make_tensor(c.batch, c.k_len, c.n_kv_head, c.head_dim, padded);
      return;
    }
    q = make_tensor(c.batch, c.q_len, c.n_head + 2 * c.n_kv_head, c.head_dim, false);
    k = v = q;
    q.heads = c.n_head;
    k.heads = v.heads = c.n_kv_head;
    k.data = q.data + c.n_head * c.head_dim;
    v.data = k.data + c.n_kv_head * c.head_dim;
  }
};

// All that a forward and a backward call touch.
struct Tensors {
  explicit Tensors(const Case& c)
      : in(c),
        grad(c),
        out(make_tensor(c.batch, c.q_len, c.n_head, c.head_dim, c.layout == Layout::kPadded)),
        dout(make_tensor(c.batch, c.q_len, c.n_head, c.head_dim, c.layout == Layout::kPadded)),
        lse(c.batch * c.n_head * c.q_len) {
    in.q.fill(1, c.gain);
    in.k.fill(2, c.gain);
    in.v.fill(3, 1.5f);
    dout.fill(4, 1.5f);
  }
  Triple in, grad;
  Tensor out, dout;
  GuardedFloats lse;
};

inline AttentionProblem problem_of(const Case& c, const Tensors& t) {
  AttentionProblem p;
  p.batch = c.batch;
  p.q_len = c.q_len;
  p.k_len = c.k_len;
  p.n_head = c.n_head;
  p.n_kv_head = c.n_kv_head;
  p.head_dim = c.head_dim;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.causal = c.causal;
  p.window_left = c.window_left;
  p.q_pos0 = c.q_pos0;
  p.k_pos0 = c.k_pos0;
  p.q = t.in.q.strides;
  p.k = t.in.k.strides;
  p.v = t.in.v.strides;
  p.out = t.out.strides;
  p.dout = t.dout.strides;
  p.dq = t.grad.q.strides;
  p.dk = t.grad.k.strides;
  p.dv = t.grad.v.strides;
  p.lse_stride_head = c.q_len;
  p.lse_stride_batch = c.n_head * c.q_len;
  return p;
}

// Runs a launch on two workers' areas, in the given or the opposite order of tasks.
template <class Args>
void run(const Launch& launch, const AttentionProblem& p, const Args& args,
         void (*task)(const AttentionProblem&, const Args&, const TaskContext&),
         bool backwards = false) {
  const auto area = [](size_t bytes) {
    const size_t rounded = (bytes / 64 + 2) * 64;
    std::shared_ptr<void> memory(std::aligned_alloc(64, rounded), std::free);
    std::memset(memory.get(), 0xFF, rounded);
    return memory;
  };
  const auto shared = area(launch.shared_bytes);
  const std::shared_ptr<void> workers[2] = {area(launch.worker_bytes), area(launch.worker_bytes)};
  for (int phase = 0; phase < launch.phases; ++phase) {
    for (int64_t n = 0; n < launch.tasks[phase]; ++n) {
      const int64_t t = backwards ? launch.tasks[phase] - 1 - n : n;
      const int worker = backwards ? 0 : static_cast<int>(n * 7 % 3 % 2);
      task(p, args, {phase, t, shared.get(), workers[worker].get()});
    }
  }
}

inline void run_forward(const AttentionKernels& kernels, const AttentionProblem& p,
                        const Tensors& t, bool backwards = false) {
  const ForwardArgs args{t.in.q.data, t.in.k.data, t.in.v.data, t.out.data, t.lse.data()};
  run(kernels.plan_forward(p), p, args, kernels.run_forward, backwards);
}

inline void run_backward(const AttentionKernels& kernels, const AttentionProblem& p,
                         const Tensors& t, bool backwards = false) {
  const BackwardArgs args{t.in.q.data, t.in.k.data,   t.in.v.data,   t.out.data,   t.lse.data(),
                          t.dout.data, t.grad.q.data, t.grad.k.data, t.grad.v.data};
  run(kernels.plan_backward(p), p, args, kernels.run_backward, backwards);
}

// The oracle's answers in fp64, contiguous.
struct Expected {
  std::vector<double> out, lse, dq, dk, dv;

  Expected(const Case& c, const AttentionProblem& p, const Tensors& t)
      : out(numel(t.in.q)),
        lse(static_cast<size_t>(c.batch * c.n_head * c.q_len)),
        dq(out.size()),
        dk(numel(t.in.k)),
        dv(dk.size()) {
    reference::AttentionShape s;
    s.batch = c.batch;
    s.q_len = c.q_len;
    s.k_len = c.k_len;
    s.n_head = c.n_head;
    s.n_kv_head = c.n_kv_head;
    s.head_dim = c.head_dim;
    s.scale = p.scale;
    s.causal = c.causal;
    s.window_left = c.window_left;
    s.q_pos0 = c.q_pos0;
    s.k_pos0 = c.k_pos0;
    const auto queries = reference::contiguous(c.q_len, c.n_head, c.head_dim);
    const auto keys = reference::contiguous(c.k_len, c.n_kv_head, c.head_dim);
    const auto q = t.in.q.values(), k = t.in.k.values(), v = t.in.v.values();
    const auto dout = t.dout.values();
    reference::attention_forward<double, double, double>(s, {q.data(), queries}, {k.data(), keys},
                                                         {v.data(), keys}, {out.data(), queries},
                                                         lse.data());
    reference::attention_backward<double, double>(
        s, {q.data(), queries}, {k.data(), keys}, {v.data(), keys}, {dout.data(), queries},
        {dq.data(), queries}, {dk.data(), keys}, {dv.data(), keys});
  }

 private:
  static size_t numel(const Tensor& t) {
    return static_cast<size_t>(t.batch * t.tokens * t.heads * t.dim);
  }
};

// ||got - want|| <= relative * max(||want||, 1) and max |got - want| <= largest * max(1, max
// |want|)
inline void expect_close(const char* name, const Tensor& got, const std::vector<double>& want,
                         double relative, double largest) {
  double error = 0.0, norm = 0.0, worst = 0.0, top = 1.0;
  got.for_each([&](const float& x, uint32_t n) {
    const double difference = std::abs(static_cast<double>(x) - want[n]);
    error += difference * difference;
    norm += want[n] * want[n];
    worst = difference > worst || std::isnan(difference) ? difference : worst;
    top = std::max(top, std::abs(want[n]));
  });
  EXPECT_LE(std::sqrt(error), relative * std::max(std::sqrt(norm), 1.0)) << name;
  EXPECT_LE(worst, largest * top) << name;
}

inline void expect_lse(const GuardedFloats& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double x = got.data()[i];
    if (std::isinf(want[i])) {
      ASSERT_EQ(x, want[i]) << "lse " << i;
    } else {
      ASSERT_LE(std::abs(x - want[i]), 1e-5 + 2e-6 * std::abs(want[i])) << "lse " << i;
    }
  }
}

// Memory of the buffer that belongs to none of the tensors is as it was.
inline void expect_gaps_untouched(const char* name, const std::vector<Tensor>& tensors) {
  const GuardedFloats& buffer = *tensors.front().buffer;
  std::vector<bool> owned(static_cast<size_t>(buffer.size()), false);
  for (const Tensor& t : tensors) {
    t.for_each(
        [&](const float& x, uint32_t) { owned[static_cast<size_t>(&x - buffer.data())] = true; });
  }
  for (int64_t i = 0; i < buffer.size(); ++i) {
    if (owned[static_cast<size_t>(i)]) continue;
    uint32_t bits;
    std::memcpy(&bits, buffer.data() + i, sizeof(bits));
    ASSERT_EQ(bits, 0xFFFFFFFFu) << name << ": wrote between rows, element " << i;
  }
}

inline std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Logic}) {
    if (isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

// Forward and backward of one case on every ISA of this machine, against the oracle (gate G32).
inline void check_case(const Case& c) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const Tensors first(c);
  const Expected want(c, problem_of(c, first), first);
  for (const Isa isa : available_isas()) {
    const AttentionKernels& kernels = attention_kernels(isa);
    SCOPED_TRACE(kernels.isa);
    const Tensors t(c);
    const AttentionProblem p = problem_of(c, t);
    run_forward(kernels, p, t);
    expect_close("out", t.out, want.out, 3e-6, 1e-5);
    expect_lse(t.lse, want.lse);
    run_backward(kernels, p, t);
    expect_close("dq", t.grad.q, want.dq, 1e-5, 3e-5);
    expect_close("dk", t.grad.k, want.dk, 1e-5, 3e-5);
    expect_close("dv", t.grad.v, want.dv, 1e-5, 3e-5);
    expect_gaps_untouched("out", {t.out});
    if (c.layout == Layout::kInterleaved) {
      expect_gaps_untouched("gradients", {t.grad.q, t.grad.k, t.grad.v});
    } else {
      expect_gaps_untouched("dq", {t.grad.q});
      expect_gaps_untouched("dk", {t.grad.k});
      expect_gaps_untouched("dv", {t.grad.v});
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace heddle::kernels::cpu::testing
