// heddle generate --checkpoint DIR --prompt TEXT
#include <cstdio>
#include <string>
#include <vector>

#include "framework/cli/commands.h"
#include "framework/generate/generate.h"
#include "framework/train/loaded_model.h"

namespace heddle {
namespace {

struct GenerateCommand {
  std::string checkpoint;
  std::string prompt;
  std::string attention;
  int64_t tokens = 200;
  float temperature = 0.8f;
  int64_t top_k = 0;
  uint64_t seed = 42;
  int64_t threads = 0;
};

// Prints the text as it grows: what decoding one more token adds.
class Printer {
 public:
  Printer(const Tokenizer& tokenizer, std::vector<int32_t> prompt)
      : tokenizer_(tokenizer), ids_(std::move(prompt)) {
    print();
  }
  void token(int32_t id) {
    ids_.push_back(id);
    print();
  }

 private:
  void print() {
    const std::string text = tokenizer_.decode(ids_);
    if (text.size() > shown_) std::fwrite(text.data() + shown_, 1, text.size() - shown_, stdout);
    shown_ = text.size();
    std::fflush(stdout);
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t shown_ = 0;
};

void run_generate(const GenerateCommand& c) {
  LoadedModel loaded = load_model(
      c.checkpoint,
      {.attention_backend = c.attention, .threads = c.threads, .only_decode = true});
  const Tokenizer& tokenizer = *loaded.tokenizer;
  std::vector<int32_t> prompt;
  if (tokenizer.bos() >= 0) prompt.push_back(tokenizer.bos());
  const std::vector<int32_t> words = tokenizer.encode(c.prompt);
  prompt.insert(prompt.end(), words.begin(), words.end());

  GenerateOptions options;
  options.max_tokens = c.tokens;
  options.sampler = {.temperature = c.temperature, .top_k = c.top_k, .seed = c.seed};
  if (tokenizer.bos() >= 0) options.stop_tokens = {tokenizer.bos()};
  Printer printer(tokenizer, prompt);
  generate(*loaded.model, prompt, options, [&](int64_t, int32_t token) {
    printer.token(token);
    return true;
  });
  std::printf("\n");
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  auto c = std::make_shared<GenerateCommand>();
  CLI::App* command = app.add_subcommand("generate", "Let a trained model write");
  command->add_option("--checkpoint", c->checkpoint, "run folder or checkpoint folder")->required();
  command->add_option("--prompt", c->prompt, "how the text begins");
  command->add_option("--tokens", c->tokens, "tokens to write, at most")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--temperature", c->temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", c->top_k, "sample among the k likeliest; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", c->seed, "same seed, same text")->capture_default_str();
  command->add_option("--attention", c->attention, "attention backend; default: the run's");
  command->add_option("--threads", c->threads, "compute threads; 0: all processors")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->callback([c, &exit_code] {
    run_generate(*c);
    exit_code = 0;
  });
}

}  // namespace heddle
