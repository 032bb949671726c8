// Text continuation: prompts in, tokens out, through the key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "framework/generate/sampler.h"
#include "framework/model/gpt.h"

namespace heddle {

struct GenerateOptions {
  int64_t max_tokens = 64;  // per row, prompt not counted
  SamplerOptions sampler = {};
  std::vector<int32_t> stop_tokens = {};  // a row ends before one of these, which is not returned
};

enum class StopReason { kMaxTokens, kStopToken, kCallback };

struct Generation {
  std::vector<int32_t> tokens;  // without the prompt
  StopReason reason = StopReason::kMaxTokens;
};

// Called with each new token; false ends its row (the token stays).
using OnToken = std::function<bool(int64_t row, int32_t token)>;

// Continues every prompt; prompts may differ in length and must not be empty. Row r draws from its
// own stream: with equal seeds it gives the same text alone or beside others. Reads prompts of any
// length and beyond spec().sequence_len; windows stay what they are.
std::vector<Generation> generate(Gpt& model, const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options, const OnToken& on_token = {});
Generation generate(Gpt& model, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                    const OnToken& on_token = {});

// The same text by a full forward pass per token, without a cache: what tests compare with. Prompt
// and text, all but its last token, fit model.seq_len().
Generation generate_uncached(Gpt& model, const std::vector<int32_t>& prompt,
                             const GenerateOptions& options);

}  // namespace heddle
