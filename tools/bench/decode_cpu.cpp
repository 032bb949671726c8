// Decoding speed with drawn weights: a prompt is read, then tokens are written greedily, one a
// step. Prints JSON.
//   heddle_decode_cpu run.yaml [context] [tokens] [batch ...]
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

double tokens_per_second(Gpt& model, int64_t batch, int64_t context, int64_t tokens) {
  const int64_t vocab = model.spec().vocab_size;
  KvCache cache(model.spec(), model.device(), batch, context + tokens);
  std::vector<float> logits(static_cast<size_t>(batch * vocab));
  std::vector<int32_t> ids(static_cast<size_t>(batch * context));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % vocab);
  model.decode(ids.data(), batch, context, cache, logits.data());
  ids.resize(static_cast<size_t>(batch));
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t b = 0; b < batch; ++b) ids[b] = argmax(logits.data() + b * vocab, vocab);
    model.decode(ids.data(), batch, 1, cache, logits.data());
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return static_cast<double>(batch * tokens) / seconds;
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
    std::printf("{\"batch\": %lld, \"context\": %lld, \"tokens_per_second\": %.2f}\n",
                static_cast<long long>(batch), static_cast<long long>(context),
                tokens_per_second(model, batch, context, tokens));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run(argc, argv);
}
