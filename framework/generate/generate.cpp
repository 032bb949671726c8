#include "framework/generate/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/core/error.h"

namespace heddle {
namespace {

// One prompt on its way.
struct Row {
  Row(const SamplerOptions& options, int64_t index)
      : sampler(options, fmt::format("generate/{}", index)) {}
  Sampler sampler;
  Generation text;
  int32_t last = 0;
  bool done = false;
};

void check_prompts(const std::vector<std::vector<int32_t>>& prompts,
                   const GenerateOptions& options) {
  if (options.max_tokens < 0) {
    throw config_error(fmt::format("max_tokens: got {}, expected at least 0", options.max_tokens));
  }
  for (const auto& prompt : prompts) {
    if (prompt.empty()) {
      throw config_error("a prompt has no tokens", "begin it with the tokenizer's bos token");
    }
  }
}

// Takes the next token of a row from its logits.
void advance(Row& row, int64_t index, const float* logits, int64_t vocab,
             const GenerateOptions& options, const OnToken& on_token) {
  if (row.done) return;
  row.last = row.sampler.sample(logits, vocab);
  const auto& stops = options.stop_tokens;
  if (std::find(stops.begin(), stops.end(), row.last) != stops.end()) {
    row.text.reason = StopReason::kStopToken;
    row.done = true;
    return;
  }
  row.text.tokens.push_back(row.last);
  if (on_token && !on_token(index, row.last)) {
    row.text.reason = StopReason::kCallback;
    row.done = true;
  }
  if (static_cast<int64_t>(row.text.tokens.size()) == options.max_tokens) row.done = true;
}

bool all_done(const std::vector<Row>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.done; });
}

int64_t longest(const std::vector<std::vector<int32_t>>& prompts) {
  size_t length = 0;
  for (const auto& prompt : prompts) length = std::max(length, prompt.size());
  return static_cast<int64_t>(length);
}

}  // namespace

std::vector<Generation> generate(Gpt& model, const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options, const OnToken& on_token) {
  check_prompts(prompts, options);
  const auto batch = static_cast<int64_t>(prompts.size());
  std::vector<Row> rows;
  for (int64_t r = 0; r < batch; ++r) rows.emplace_back(options.sampler, r);
  if (batch > 0 && options.max_tokens > 0) {
    const int64_t vocab = model.spec().vocab_size;
    KvCache cache(model.spec(), model.device(), batch, longest(prompts) + options.max_tokens);
    std::vector<float> logits(static_cast<size_t>(batch * vocab));
    for (int64_t r = 0; r < batch; ++r) {
      const auto& prompt = prompts[static_cast<size_t>(r)];
      float* const out = logits.data() + r * vocab;
      model.decode(prompt.data(), 1, static_cast<int64_t>(prompt.size()), cache, out,
                   {.first_row = r});
      advance(rows[static_cast<size_t>(r)], r, out, vocab, options, on_token);
    }
    std::vector<int32_t> last(static_cast<size_t>(batch));
    while (!all_done(rows)) {
      // Rows that have ended ride along; nobody reads their logits.
      for (size_t r = 0; r < rows.size(); ++r) last[r] = rows[r].last;
      model.decode(last.data(), batch, 1, cache, logits.data());
      for (int64_t r = 0; r < batch; ++r) {
        advance(rows[static_cast<size_t>(r)], r, logits.data() + r * vocab, vocab, options,
                on_token);
      }
    }
  }
  std::vector<Generation> out;
  for (Row& row : rows) out.push_back(std::move(row.text));
  return out;
}

Generation generate(Gpt& model, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                    const OnToken& on_token) {
  return std::move(
      generate(model, std::vector<std::vector<int32_t>>{prompt}, options, on_token)[0]);
}

Generation generate_uncached(Gpt& model, const std::vector<int32_t>& prompt,
                             const GenerateOptions& options) {
  check_prompts({prompt}, options);
  const int64_t capacity = model.seq_len(), vocab = model.spec().vocab_size;
  if (static_cast<int64_t>(prompt.size()) + options.max_tokens > capacity + 1) {
    throw config_error(fmt::format("{} prompt tokens and {} new ones exceed the model's {}",
                                   prompt.size(), options.max_tokens, capacity),
                       "generate with the cache");
  }
  Row row(options.sampler, 0);
  row.done = options.max_tokens == 0;
  std::vector<float> logits(static_cast<size_t>(vocab));
  while (!row.done) {
    // Attention is causal: what follows the last token cannot reach it.
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), row.text.tokens.begin(), row.text.tokens.end());
    const auto last = static_cast<int64_t>(tokens.size()) - 1;
    tokens.resize(static_cast<size_t>(capacity), 0);
    model.logits(tokens.data(), 1, &last, 1, logits.data());
    advance(row, 0, logits.data(), vocab, options, {});
  }
  return std::move(row.text);
}

}  // namespace heddle
