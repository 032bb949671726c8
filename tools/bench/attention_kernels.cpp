// Rates of the CPU attention kernels beside the FMA peak of the same cores, measured around each
// case: `attention_kernels [threads] [repetitions]`; HEDDLE_CPU_ISA chooses the instructions.
//
// A visible pair of query and key counts 4 D flop forward and 10 D backward, per query head.
// Rates come from the fastest repetition; the median beside it shows how quiet the machine was.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "framework/core/parallel_for.h"
#include "kernels/common/attention_ranges.h"
#include "kernels/cpu/attention/attention.h"

namespace {

using namespace heddle::kernels;       // NOLINT
using namespace heddle::kernels::cpu;  // NOLINT

using Floats = std::unique_ptr<float[], decltype(&std::free)>;

Floats floats(size_t count, bool random) {
  const size_t bytes = (count * sizeof(float) / 64 + 2) * 64;
  Floats memory(static_cast<float*>(std::aligned_alloc(64, bytes)), std::free);
  std::memset(memory.get(), 0, bytes);
  uint32_t state = 12345;
  for (size_t i = 0; random && i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    memory[i] = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
  return memory;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  double best, median;

  explicit Times(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    best = x.front();
    median = x[x.size() / 2];
  }
};

// GFLOP/s of all workers together.
double peak(const AttentionKernels& kernels, double for_seconds) {
  std::vector<double> rates(static_cast<size_t>(heddle::num_threads()), 0.0);
  heddle::parallel_for(static_cast<int64_t>(rates.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rates[static_cast<size_t>(i)] = kernels.measure_peak(for_seconds);
    }
  });
  double sum = 0.0;
  for (const double rate : rates) sum += rate;
  return sum * 1e-9;
}

// A launch with its workspaces, run on all workers.
template <class Args>
class Runner {
 public:
  using Task = void (*)(const AttentionProblem&, const Args&, const TaskContext&);

  Runner(const Launch& launch, const AttentionProblem& problem, const Args& args, Task task)
      : launch_(launch),
        problem_(problem),
        args_(args),
        task_(task),
        shared_(floats(launch.shared_bytes / sizeof(float), false)) {
    for (int w = 0; w < heddle::num_threads(); ++w) {
      workers_.push_back(floats(launch.worker_bytes / sizeof(float), false));
    }
  }

  void run() const {
    for (int phase = 0; phase < launch_.phases; ++phase) {
      heddle::parallel_tasks(launch_.tasks[phase], [&](int64_t task, int worker) {
        task_(problem_, args_,
              {phase, task, shared_.get(), workers_[static_cast<size_t>(worker)].get()});
      });
    }
  }
  Times time(int repetitions) const {
    run();
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) {
      const double begin = seconds();
      run();
      times.push_back(seconds() - begin);
    }
    return Times(std::move(times));
  }

 private:
  Launch launch_;
  const AttentionProblem& problem_;
  Args args_;
  Task task_;
  Floats shared_;
  std::vector<Floats> workers_;
};

struct Case {
  const char* name;
  int64_t batch, tokens, n_head, n_kv_head, head_dim, window_left;
};

AttentionProblem problem_of(const Case& c) {
  AttentionProblem p;
  p.batch = c.batch;
  p.q_len = p.k_len = c.tokens;
  p.n_head = c.n_head;
  p.n_kv_head = c.n_kv_head;
  p.head_dim = c.head_dim;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.window_left = c.window_left;
  const auto strides = [&](int64_t heads) {
    return TensorStrides{c.tokens * heads * c.head_dim, heads * c.head_dim, c.head_dim};
  };
  p.q = p.out = p.dout = p.dq = strides(c.n_head);
  p.k = p.v = p.dk = p.dv = strides(c.n_kv_head);
  p.lse_stride_head = c.tokens;
  p.lse_stride_batch = c.n_head * c.tokens;
  return p;
}

void report(const char* direction, const Times& time, double flops, double gflops_peak) {
  const double rate = flops / time.best * 1e-9;
  fmt::print("  {:8} {:9.3f} ms (median {:9.3f}) {:7.1f} GFLOP/s {:5.1f} % of {:.0f}\n", direction,
             time.best * 1e3, time.median * 1e3, rate, 100.0 * rate / gflops_peak, gflops_peak);
}

void bench_training(const AttentionKernels& kernels, const Case& c, int repetitions) {
  const AttentionProblem p = problem_of(c);
  const auto queries = static_cast<size_t>(c.batch * c.tokens * c.n_head * c.head_dim);
  const auto keys = static_cast<size_t>(c.batch * c.tokens * c.n_kv_head * c.head_dim);
  const Floats q = floats(queries, true), k = floats(keys, true), v = floats(keys, true);
  const Floats dout = floats(queries, true), out = floats(queries, false);
  const Floats lse = floats(static_cast<size_t>(c.batch * c.n_head * c.tokens), false);
  const Floats dq = floats(queries, false), dk = floats(keys, false), dv = floats(keys, false);
  const AttentionMask mask{c.tokens, c.tokens, 0, 0, c.window_left, true};
  const double pairs = static_cast<double>(visible_pairs(mask) * c.batch * c.n_head);
  const auto dim = static_cast<double>(c.head_dim);

  fmt::print("{}\n", c.name);
  double top = peak(kernels, 0.02);
  const Runner<ForwardArgs> forward(kernels.plan_forward(p), p,
                                    {q.get(), k.get(), v.get(), out.get(), lse.get()},
                                    kernels.run_forward);
  const Times forward_time = forward.time(repetitions);
  top = std::max(top, peak(kernels, 0.02));
  report("forward", forward_time, 4.0 * dim * pairs, top);

  const BackwardArgs args{q.get(),    k.get(),  v.get(),  out.get(), lse.get(),
                          dout.get(), dq.get(), dk.get(), dv.get()};
  const Runner<BackwardArgs> backward(kernels.plan_backward(p), p, args, kernels.run_backward);
  const Times backward_time = backward.time(repetitions);
  top = std::max(top, peak(kernels, 0.02));
  report("backward", backward_time, 10.0 * dim * pairs, top);
}

// One new token per row against a full cache, cold: several caches are walked in turn.
void bench_decode(const AttentionKernels& kernels, const Case& c, int repetitions) {
  constexpr size_t kCaches = 6;  // as many as d6 has layers
  AttentionProblem p = problem_of(c);
  p.q_len = 1;
  p.q = p.out = {c.n_head * c.head_dim, c.n_head * c.head_dim, c.head_dim};
  const auto queries = static_cast<size_t>(c.batch * c.n_head * c.head_dim);
  const auto keys = static_cast<size_t>(c.batch * c.tokens * c.n_kv_head * c.head_dim);
  const std::vector<int32_t> kv_len(static_cast<size_t>(c.batch), static_cast<int32_t>(c.tokens));
  const Floats q = floats(queries, true), out = floats(queries, false);
  std::vector<Floats> caches;
  std::vector<Runner<DecodeArgs>> layers;
  for (size_t i = 0; i < kCaches; ++i) {
    caches.push_back(floats(2 * keys, true));
    const float* cache = caches.back().get();
    layers.emplace_back(kernels.plan_decode(p), p,
                        DecodeArgs{q.get(), cache, cache + keys, kv_len.data(), out.get(), nullptr},
                        kernels.run_decode);
  }
  std::vector<double> times;
  for (int i = 0; i <= 20 * repetitions; ++i) {
    const double begin = seconds();
    for (const auto& layer : layers) layer.run();
    times.push_back((seconds() - begin) / kCaches);
  }
  const Times time(std::move(times));
  fmt::print("{}\n  {:8} {:9.1f} us (median {:9.1f}) {:7.1f} GB/s\n", c.name, "decode",
             time.best * 1e6, time.median * 1e6,
             static_cast<double>(2 * keys * sizeof(float)) / time.best * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) heddle::set_num_threads(std::atoi(argv[1]));
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 7;
  const AttentionKernels& kernels = attention_kernels(select_isa());
  fmt::print("{} kernels, {} threads, best of {}\n", kernels.isa, heddle::num_threads(),
             repetitions);
  const Case training[] = {
      {"T 256 window 128, B 16 H 4 K 2 D 32", 16, 256, 4, 2, 32, 128},
      {"T 256 causal, B 16 H 4 K 2 D 32", 16, 256, 4, 2, 32, -1},
      {"T 512 causal, B 4 H 6 D 64", 4, 512, 6, 6, 64, -1},
      {"T 2048 causal, H 6 D 64", 1, 2048, 6, 6, 64, -1},
      {"T 2048 window 512, H 6 D 64", 1, 2048, 6, 6, 64, 512},
      {"T 2048 causal, H 6 K 2 D 64", 1, 2048, 6, 2, 64, -1},
      {"T 2048 causal, H 16 D 64", 1, 2048, 16, 16, 64, -1},
      {"T 2048 causal, H 6 D 128", 1, 2048, 6, 6, 128, -1},
      {"T 4096 causal, H 8 K 2 D 128", 1, 4096, 8, 2, 128, -1},
      {"T 4096 window 1024, H 8 K 2 D 128", 1, 4096, 8, 2, 128, 1024},
      {"T 8192 causal, H 6 D 64", 1, 8192, 6, 6, 64, -1},
      {"T 8192 window 2048, H 6 D 64", 1, 8192, 6, 6, 64, 2048},
  };
  for (const Case& c : training) bench_training(kernels, c, repetitions);
  const Case decoding[] = {
      {"context 512, B 1 H 6 D 64", 1, 512, 6, 6, 64, -1},
      {"context 512, B 8 H 6 D 64", 8, 512, 6, 6, 64, -1},
      {"context 4096, B 1 H 6 K 2 D 64", 1, 4096, 6, 2, 64, -1},
  };
  for (const Case& c : decoding) bench_decode(kernels, c, repetitions);
}
