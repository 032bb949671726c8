// A checkpoint opened for use rather than for training: weights, tokenizer and attention of one
// process. What `heddle eval` and `heddle generate` stand on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/attention/attention.h"
#include "framework/config/config.h"
#include "framework/data/tokenizer.h"
#include "framework/device/device.h"
#include "framework/model/gpt.h"

namespace heddle {

struct LoadedModel {
  std::string path;  // of the step folder
  int64_t step = 0;
  Config config;  // of the run that wrote it
  std::shared_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Device> device;
  std::unique_ptr<AttentionHost> attention;
  std::unique_ptr<Gpt> model;
};

struct LoadOptions {
  std::string attention_backend = {};  // empty: what the run's configuration says
  int64_t threads = 0;
  int64_t batch = 1;         // sequences of a forward pass, at most
  bool only_decode = false;  // activations for short passes only
};

// `checkpoint`: a step folder, a checkpoints folder or a run folder. Throws heddle::Error.
LoadedModel load_model(const std::string& checkpoint, const LoadOptions& options);

}  // namespace heddle
