// What the matrix products of one optimizer step take alone, one after the other with nothing in
// between: the floor that the step of a run is compared with. Prints seconds, the median of a few
// passes, and FLOP as JSON.
//   heddle_step_parts_cpu run.yaml [passes] [section.key=value ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "framework/config/load.h"
#include "framework/core/buffer.h"
#include "framework/core/parallel_for.h"
#include "framework/core/rng.h"
#include "framework/device/device.h"
#include "framework/model/activations.h"
#include "framework/model/params.h"
#include "framework/model/spec.h"
#include "framework/optim/muon.h"
#include "framework/optim/plan.h"

namespace heddle {
namespace {

HostBuffer noise(int64_t elements) {
  HostBuffer buffer(static_cast<size_t>(elements) * sizeof(float), "benchmark");
  Rng rng(1, "bench");
  float pattern[1021];
  for (float& x : pattern) x = 0.02f * rng.normal();
  for (int64_t i = 0; i < elements; ++i) buffer.f32()[i] = pattern[i % 1021];
  return buffer;
}

class Products {
 public:
  Products(const Config& config, Device& device)
      : spec_(resolve_model(config.model, 0)),
        ops_(device.ops()),
        layout_(spec_),
        plan_(plan_optimizer(config.optim, layout_, config.train.total_batch_size)),
        rows_(config.train.device_batch_size * spec_.sequence_len),
        micro_steps_(config.train.total_batch_size / rows_),
        chunk_(logit_rows(rows_, spec_.padded_vocab, true)),
        wide_(std::max(spec_.qkv_dim(), spec_.mlp_dim())),
        in_(noise(std::max(rows_ * wide_, chunk_ * spec_.padded_vocab))),
        out_(noise(std::max(rows_ * wide_, chunk_ * spec_.padded_vocab))),
        weights_(noise(layout_.total())),
        gradients_(noise(layout_.total())),
        scratch_(noise(plan_.scratch_bytes(ops_.workers()) / int64_t{sizeof(float)} + 1)) {}

  // Returns FLOP.
  double step() {
    flop_ = 0;
    for (int64_t micro = 0; micro < micro_steps_; ++micro) {
      for (const ParamInfo& p : layout_.params()) {
        if (p.kind == ParamKind::kMatrix && p.rows >= spec_.head_dim) linear(p, rows_);
      }
      const ParamInfo& head = layout_.at("lm_head.weight");
      for (int64_t row = 0; row < rows_; row += chunk_) {
        linear(head, std::min(chunk_, rows_ - row));
      }
    }
    muon();
    return flop_;
  }

 private:
  // Forward, gradient of the input, gradient of the weights.
  void linear(const ParamInfo& p, int64_t rows) {
    const Matrix x = matrix(in_.f32(), rows, p.cols), y = matrix(out_.f32(), rows, p.rows);
    const Matrix w = matrix(weights_.f32() + p.offset, p.rows, p.cols);
    const Matrix dw = matrix(gradients_.f32() + p.offset, p.rows, p.cols);
    ops_.matmul(x, false, w, true, y);
    ops_.matmul(y, false, w, false, x);
    ops_.matmul(y, true, x, false, dw);
    flop_ += 6.0 * static_cast<double>(rows) * p.rows * p.cols;
  }

  void muon() {
    const int64_t matrix_size = plan_.matrix_scratch, gram_size = plan_.gram_scratch;
    ops_.run_independent(static_cast<int64_t>(plan_.muon.size()), [&](int64_t i, int worker) {
      const ParamInfo& p = plan_.muon[static_cast<size_t>(i)].param;
      const int64_t side = std::min(p.rows, p.cols);
      float* base = scratch_.f32() + worker * 2 * (matrix_size + gram_size);
      float* gram = base + 2 * matrix_size;
      polar_express(ops_, matrix(base, p.rows, p.cols), matrix(base + matrix_size, p.rows, p.cols),
                    matrix(gram, side, side), matrix(gram + gram_size, side, side));
    });
    for (const MuonTask& task : plan_.muon) flop_ += 2.0 * task.cost();
  }

  ModelSpec spec_;
  Ops& ops_;
  ParamLayout layout_;
  OptimPlan plan_;
  int64_t rows_, micro_steps_, chunk_, wide_;
  HostBuffer in_, out_, weights_, gradients_, scratch_;
  double flop_ = 0;
};

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: heddle_step_parts_cpu run.yaml [passes] [section.key=value ...]\n");
    return 2;
  }
  const int passes = argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
  const Config config =
      load_config(argv[1], std::vector<std::string>(argv + std::min(argc, 3), argv + argc));
  set_num_threads(static_cast<int>(config.train.threads));
  const auto device = make_cpu_device();
  Products products(config, *device);
  std::vector<double> seconds;
  double flop = products.step();
  for (int i = 0; i < passes; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    flop = products.step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("{\"seconds\": %.6f, \"flop\": %.6e}\n", seconds[seconds.size() / 2], flop);
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run(argc, argv);
}
