// Rates of the CPU ops on the shapes of two training steps and of decoding, next to the FMA peak
// and the copy rate measured in the same run.
//   heddle_ops_cpu [threads] [word ...]     only rows whose name contains one of the words
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "framework/core/buffer.h"
#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"
#include "framework/device/device.h"

namespace heddle {
namespace {

std::vector<std::string> wanted;

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Best of many short repetitions, about 0.2 s in all: the others met somebody else on the machine.
double best_seconds(const std::function<void()>& body) {
  const double once = std::max(1e-7, seconds(body));
  const int batch = static_cast<int>(std::clamp(0.004 / once, 1.0, 10000.0));
  double best = once, spent = 0;
  for (int i = 0; i < 50 && spent < 0.4; ++i) {
    const double taken = seconds([&] {
      for (int r = 0; r < batch; ++r) body();
    });
    best = std::min(best, taken / batch);
    spent += taken;
  }
  return best;
}

bool skipped(const std::string& name) {
  if (wanted.empty()) return false;
  return std::none_of(wanted.begin(), wanted.end(), [&](const std::string& word) {
    return name.find(word) != std::string::npos;
  });
}

struct Tensor {
  explicit Tensor(int64_t elements, float scale = 1.0f)
      : buffer(static_cast<size_t>(elements) * sizeof(float), "benchmark") {
    Rng rng(1, "bench");
    float pattern[1024];
    for (float& x : pattern) x = scale * rng.normal();
    for (int64_t i = 0; i < elements; ++i) buffer.f32()[i] = pattern[i % 1024];
  }
  operator float*() const { return buffer.f32(); }
  HostBuffer buffer;
};

struct Shape {
  const char* name;
  int64_t rows, channels, heads, kv_heads, head_dim, vocab, chunk, seq_len;
  int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

class Bench {
 public:
  explicit Bench(Device& device) : device_(device), ops_(device.ops()) {}

  void machine() {
    peak_ = device_.measure_peak_flops();
    Tensor a(16 << 20), b(16 << 20);
    const double copy = best_seconds([&] { ops_.copy(a, b, 16 << 20); });
    std::printf("%s: FMA peak %.1f GFLOP/s, copy %.1f GB/s\n", device_.description().c_str(),
                peak_ / 1e9, 2.0 * (16 << 20) * sizeof(float) / copy / 1e9);
  }

  void products(const Shape& s) {
    const struct {
      const char* name;
      int64_t out, in;
    } layers[] = {{"qkv", s.qkv(), s.channels},
                  {"proj", s.channels, s.channels},
                  {"fc", 4 * s.channels, s.channels},
                  {"mlp", s.channels, 4 * s.channels}};
    for (const auto& layer : layers) {
      const std::string name = std::string(s.name) + " " + layer.name;
      product(name + " forward", s.rows, layer.out, layer.in, false, true);
      product(name + " dx", s.rows, layer.in, layer.out, false, false);
      product(name + " dW", layer.out, layer.in, s.rows, true, false);
    }
    const int64_t c = s.channels;
    product(std::string(s.name) + " muon gram", c, c, 4 * c, true, false);
    product(std::string(s.name) + " muon square", c, c, c, false, false);
    product(std::string(s.name) + " muon apply", 4 * c, c, c, false, false);
  }

  void decode(const Shape& s, int64_t batch) {
    const std::string name = std::string(s.name) + " decode";
    product(name + " qkv", batch, s.qkv(), s.channels, false, true);
    product(name + " fc", batch, 4 * s.channels, s.channels, false, true);
    product(name + " mlp", batch, s.channels, 4 * s.channels, false, true);
    product(name + " head", batch, s.vocab, s.channels, false, true);
  }

  void product(const std::string& name, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
    if (skipped(name)) return;
    Tensor a(m * k), b(k * n), c(m * n);
    const Matrix am = ta ? matrix(a, k, m) : matrix(a, m, k);
    const Matrix bm = tb ? matrix(b, n, k) : matrix(b, k, n);
    const double t =
        best_seconds([&] { ops_.matmul(am, ta, bm, tb, matrix(c, m, n), 1.0f, ta ? 1.0f : 0.0f); });
    peak_ = device_.measure_peak_flops();
    const double rate = 2.0 * static_cast<double>(m) * n * k / t;
    const double bytes = 4.0 * (static_cast<double>(m) * k + n * k + m * n);
    std::printf("%-24s %6ld x %6ld x %6ld  %8.1f GFLOP/s  %5.1f %% of peak  %6.1f GB/s\n",
                name.c_str(), m, n, k, rate / 1e9, 100 * rate / peak_, bytes / t / 1e9);
    std::fflush(stdout);
  }

  void head(const Shape& s, int64_t chunk) {
    const std::string name = std::string(s.name) + " head_loss";
    if (skipped(name)) return;
    const int64_t rows = std::min<int64_t>(s.rows, 4096);
    Tensor h(rows * s.channels), w(s.vocab * s.channels, 0.05f), scratch(chunk * s.vocab);
    Tensor dh(rows * s.channels), dw(s.vocab * s.channels), loss(rows);
    const auto targets = tokens(rows, s.vocab);
    const Matrix dhm = matrix(dh, rows, s.channels), dwm = matrix(dw, s.vocab, s.channels);
    const auto run = [&](const Matrix* dhp, const Matrix* dwp) {
      return best_seconds([&] {
        ops_.head_loss(matrix(h, rows, s.channels), matrix(w, s.vocab, s.channels), s.vocab, 15.0f,
                       targets.data(), matrix(scratch, chunk, s.vocab), loss, nullptr, dhp, dwp);
      });
    };
    const double both = run(&dhm, &dwm), forward = run(nullptr, nullptr);
    peak_ = device_.measure_peak_flops();
    const double flops = 2.0 * static_cast<double>(rows) * s.channels * s.vocab;
    std::printf("%-24s chunk %5ld   loss and gradient %6.1f %% of peak, loss only %6.1f %%\n",
                name.c_str(), chunk, 300 * flops / both / peak_, 100 * flops / forward / peak_);
    std::fflush(stdout);
  }

  void elementwise(const Shape& s) {
    const int64_t n = s.rows, c = s.channels, d = s.head_dim;
    Tensor x(n * c), z(n * c), y(n * c), h(n * c), dy(n * c), dz(n * c), rstd(n * s.heads),
        gate(n * 8);
    Tensor wte(s.vocab * c), dwte(s.vocab * c), w(1024), scalars(8);
    Tensor qkv(n * s.qkv()), dqkv(n * s.qkv()), rope(s.seq_len * d);
    Tensor ve(s.vocab * s.kv_heads * d), dve(s.vocab * s.kv_heads * d);
    Tensor a(n * 4 * c), da(n * 4 * c);
    const auto ids = tokens(n, s.vocab);
    std::vector<int32_t> index_memory(3 * n + s.vocab + 2);
    TokenIndex index{index_memory.data(), index_memory.data() + n, index_memory.data() + 2 * n,
                     index_memory.data() + 3 * n + 1};
    const Mix mix{scalars, scalars + 1, 1.0f};
    const RopeNorm op{.cos = rope,
                      .sin = rope + s.seq_len * d / 2,
                      .seq_len = s.seq_len,
                      .heads = s.heads,
                      .head_dim = d,
                      .norm = true,
                      .scale = 1.2f};
    const Matrix all{qkv, n, s.qkv(), s.qkv()}, dall{dqkv, n, s.qkv(), s.qkv()};
    const int64_t kd = s.kv_heads * d;
    const Matrix q = all.columns(0, s.heads * d), dq = dall.columns(0, s.heads * d);
    const Matrix v = all.columns(s.qkv() - kd, kd), dv = dall.columns(s.qkv() - kd, kd);
    const int64_t rows = n * c, qs = n * s.heads * d, vs = n * kd;

    row(s, "index_tokens", n * 3, [&] { ops_.index_tokens(ids.data(), n, s.vocab, &index); });
    ops_.index_tokens(ids.data(), n, s.vocab, &index);
    row(s, "add", 3 * rows, [&] { ops_.add(x, z, rows); });
    row(s, "sum_squares", rows, [&] { ops_.sum_squares(x, rows); });
    row(s, "embed_norm forward", 2 * rows,
        [&] { ops_.embed_norm_forward(ids.data(), n, matrix(wte, s.vocab, c), x, rstd); });
    row(s, "embed_norm backward", 2 * rows + 2 * index.unique * c,
        [&] { ops_.embed_norm_backward(dy, x, rstd, index, matrix(dwte, s.vocab, c)); });
    row(s, "smear forward", 2 * rows,
        [&] { ops_.smear_forward(x, n / s.seq_len, s.seq_len, c, w, scalars, nullptr, y, gate); });
    row(s, "smear backward", 3 * rows, [&] {
      ops_.smear_backward(dy, x, gate, n / s.seq_len, s.seq_len, c, w, scalars, dz, w + 64,
                          scalars + 2);
    });
    row(s, "norm forward", 2 * rows,
        [&] { ops_.mix_norm_forward(Mix{}, x, nullptr, n, c, x, h, rstd); });
    row(s, "mix_norm forward", 4 * rows,
        [&] { ops_.mix_norm_forward(mix, x, z, n, c, y, h, rstd); });
    row(s, "norm backward", 4 * rows, [&] {
      ops_.mix_norm_backward(Mix{}, dy, h, rstd, dy, nullptr, nullptr, n, c, dy, nullptr, nullptr,
                             nullptr);
    });
    row(s, "mix_norm backward", 8 * rows, [&] {
      ops_.mix_norm_backward(mix, dz, h, rstd, dy, x, z, n, c, dy, y, scalars + 3, scalars + 4);
    });
    row(s, "rope_norm forward", 2 * qs, [&] { ops_.rope_norm_forward(op, q, rstd); });
    row(s, "rope_norm backward", 3 * qs, [&] { ops_.rope_norm_backward(op, q, rstd, dq); });
    row(s, "value_embed forward", 3 * vs, [&] {
      ops_.value_embed_forward(h, c, w, matrix(ve, s.vocab, kd), ids.data(), s.kv_heads, v, gate);
    });
    row(s, "value_embed backward", vs + 4 * index.unique * kd, [&] {
      ops_.value_embed_backward(dv, h, c, w, matrix(ve, s.vocab, kd), ids.data(), index, s.kv_heads,
                                gate, w + 256, dz, matrix(dve, s.vocab, kd));
    });
    row(s, "relu2 forward", 8 * rows, [&] { ops_.relu2_forward(a, 4 * rows); });
    row(s, "relu2 backward", 12 * rows, [&] { ops_.relu2_backward(da, a, 4 * rows); });
  }

  void optimizer(const Shape& s) {
    const int64_t n = s.vocab * s.channels, rows = 4 * s.channels, cols = s.channels;
    Tensor g(n), p(n), m(n), v(n, 0.0f), x(rows * cols), second(rows);
    const AdamWValues adamw = AdamWStep{1e-3f, 0.8f, 0.96f, 1e-10f, 0.01f, 10, 1.0f}.values();
    row(s, "adamw", 7 * n, [&] { ops_.adamw(&adamw, g, p, m, v, n); });
    const MuonValues muon{0.02f, 0.9f, 0.1f, 1.0f};
    Tensor mg(rows * cols), mm(rows * cols), mp(rows * cols);
    row(s, "muon_prepare", 6 * rows * cols,
        [&] { ops_.muon_prepare(&muon, mg, mm, rows, cols, x); });
    row(s, "muon_finish tall", 4 * rows * cols,
        [&] { ops_.muon_finish(&muon, x, second, 0.9f, rows, cols, mp); });
    row(s, "muon_finish wide", 4 * rows * cols,
        [&] { ops_.muon_finish(&muon, x, second, 0.9f, cols, rows, mp); });
  }

 private:
  static std::vector<int32_t> tokens(int64_t n, int64_t vocab) {
    Rng rng(2, "bench/tokens");
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (auto& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab)));
    return ids;
  }

  // `floats`: read and written once, as if nothing stayed in a cache.
  void row(const Shape& s, const char* op, int64_t floats, const std::function<void()>& body) {
    const std::string name = std::string(s.name) + " " + op;
    if (skipped(name)) return;
    const double t = best_seconds(body);
    std::printf("%-28s %9.1f us  %6.1f GB/s\n", name.c_str(), t * 1e6,
                4.0 * static_cast<double>(floats) / t / 1e9);
    std::fflush(stdout);
  }

  Device& device_;
  Ops& ops_;
  double peak_ = 0;
};

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  using heddle::Shape;
  heddle::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 0);
  for (int i = 2; i < argc; ++i) heddle::wanted.push_back(argv[i]);
  const auto device = heddle::make_cpu_device();
  heddle::Bench bench(*device);
  bench.machine();
  const Shape small{"small", 4096, 128, 4, 2, 32, 320, 1024, 256};
  const Shape d6{"d6", 16384, 384, 6, 6, 64, 32768, 1024, 512};
  for (const Shape& s : {small, d6}) {
    bench.products(s);
    bench.elementwise(s);
    bench.optimizer(s);
  }
  bench.head(small, 1024);
  bench.head(small, 4096);
  for (int64_t chunk : {256, 512, 1024, 2048}) bench.head(d6, chunk);
  bench.decode(d6, 1);
  bench.decode(d6, 8);
}
