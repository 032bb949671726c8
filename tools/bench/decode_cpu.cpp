// Decoding speed with drawn weights: a prompt is read, then tokens are written greedily, one a
// step. Prints JSON, with the speed at which the weights and the cache that a step reads once could
// come from memory at the rate that reading alone has here.
//   heddle_decode_cpu run.yaml [context] [tokens] [batch ...]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/config/load.h"
#include "framework/core/parallel_for.h"
#include "framework/device/device.h"
#include "framework/generate/sampler.h"
#include "framework/model/gpt.h"

namespace heddle {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Bytes/s of adding up all parameters, the best of five.
double read_bandwidth(Gpt& model) {
  const int64_t n = model.layout().total();
  double best = 0.0;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    model.device().ops().sum_squares(model.params(), n);
    best = std::max(best, static_cast<double>(n) * sizeof(float) / seconds_since(begin));
  }
  return best;
}

// Bytes that a step reads: the matrices of the layers and the head once, and each row's cache.
double bytes_of_step(const ModelSpec& spec, int64_t batch, int64_t length) {
  const int64_t c = spec.n_embd, kd = spec.kv_dim();
  const int64_t layer = c * (2 * c + 2 * kd + 2 * spec.mlp_dim());
  int64_t floats = spec.n_layer * layer + spec.vocab_size * c;
  for (int64_t i = 0; i < spec.n_layer; ++i) {
    const int64_t window = attention_kind(spec, i).window_left;
    floats += batch * 2 * kd * (window < 0 ? length : std::min(length, window + 1));
  }
  return static_cast<double>(floats) * sizeof(float);
}

// The median of five times.
double tokens_per_second(Gpt& model, int64_t batch, int64_t context, int64_t tokens) {
  const int64_t vocab = model.spec().vocab_size;
  KvCache cache(model.spec(), model.device(), batch, context + tokens);
  std::vector<float> logits(static_cast<size_t>(batch * vocab));
  std::vector<int32_t> prompt(static_cast<size_t>(batch * context));
  std::vector<int32_t> ids(static_cast<size_t>(batch));
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7919 % vocab);
  std::array<double, 5> seconds;
  for (double& taken : seconds) {
    cache.reset();
    model.decode(prompt.data(), batch, context, cache, logits.data());
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t b = 0; b < batch; ++b) ids[b] = argmax(logits.data() + b * vocab, vocab);
      model.decode(ids.data(), batch, 1, cache, logits.data());
    }
    taken = seconds_since(begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(batch * tokens) / seconds[seconds.size() / 2];
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: heddle_decode_cpu run.yaml [context] [tokens] [batch ...]\n");
    return 2;
  }
  const int64_t context = argc > 2 ? std::atoll(argv[2]) : 512;
  const int64_t tokens = argc > 3 ? std::atoll(argv[3]) : 64;
  std::vector<int64_t> batches;
  for (int i = 4; i < argc; ++i) batches.push_back(std::atoll(argv[i]));
  if (batches.empty()) batches = {1, 8};

  const Config config = load_config(argv[1]);
  set_num_threads(static_cast<int>(config.train.threads));
  const ModelSpec spec = resolve_model(config.model, 0);
  const auto device = make_cpu_device();
  const auto attention = AttentionHost::create(config.attention, *device);
  Gpt model(spec, *device, *attention, 8, std::min<int64_t>(spec.sequence_len, 256), false);
  model.init_params(1);
  for (const int64_t batch : batches) {
    const double bandwidth = read_bandwidth(model);
    const double bytes = bytes_of_step(spec, batch, context + tokens / 2);
    std::printf(
        "{\"batch\": %lld, \"context\": %lld, \"tokens_per_second\": %.2f, "
        "\"read_gb_per_second\": %.2f, \"step_mb\": %.1f, \"limit_tokens_per_second\": %.2f}\n",
        static_cast<long long>(batch), static_cast<long long>(context),
        tokens_per_second(model, batch, context, tokens), bandwidth * 1e-9, bytes * 1e-6,
        static_cast<double>(batch) * bandwidth / bytes);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run(argc, argv);
}
