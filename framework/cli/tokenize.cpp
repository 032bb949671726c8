#include "framework/cli/tokenize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "framework/cli/commands.h"
#include "framework/core/error.h"
#include "framework/data/data_files.h"
#include "framework/data/text_shards.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

Error usage_error(std::string message, std::string remedy) {
  return {ExitCode::kUsage, "tokenize", std::move(message), std::move(remedy)};
}

TextFiles files(const TokenizeOptions& options, DataKind kind, const std::string& path,
                std::string_view key) {
  const TextFormat format = kind == DataKind::kJsonl          ? TextFormat::kJsonl
                            : options.document == "paragraph" ? TextFormat::kParagraph
                                                              : TextFormat::kFile;
  return {format, data_files(path, kind, key)};
}

// Shards of two texts in one folder would train as one.
void check_out(const std::string& out) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(out, ec)) {
    if (entry.path().extension() != ".bin") continue;
    throw usage_error(fmt::format("{} already holds {}", out, entry.path().filename().string()),
                      "name another folder with --out, or remove the shards that are there");
  }
}

std::string stem(const std::string& input) {
  fs::path path = fs::path(input).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = fs::is_directory(path) ? path.filename().string() : path.stem().string();
  return name == "." || name == ".." || name.empty() ? "text" : name;
}

WrittenText write(const TextSources& sources, const TokenizeOptions& options) {
  try {
    return write_text_shards(sources, options.out, stem(options.input) + "_");
  } catch (const Error& e) {
    if (e.area() != "file") throw;
    throw environment_error("tokenize", e.message(),
                            "name a folder with --out that can be written and has room");
  }
}

void print(std::string_view name, const WrittenSplit& split) {
  fmt::print("{:<6}{} documents, {} bytes, {} tokens in {} shards\n", name, split.documents,
             split.bytes, split.bytes + split.documents, split.shards.size());
  for (const WrittenShard& shard : split.shards) {
    fmt::print("      {}  {} tokens\n", shard.path, shard.tokens);
  }
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  DataConfig config;
  config.kind = options.kind;
  config.path = options.input;
  const DataKind kind = resolve_kind(config);
  if (kind != DataKind::kText && kind != DataKind::kJsonl) {
    throw usage_error(fmt::format("{} is not text but {}", options.input, data_kind_name(kind)),
                      "name a .txt or .jsonl file, or a folder of such");
  }
  check_out(options.out);
  TextSources sources{.train = files(options, kind, options.input, "input"),
                      .val_fraction = options.val_fraction};
  if (!options.val_input.empty())
    sources.val = files(options, kind, options.val_input, "val input");
  const WrittenText text = write(sources, options);
  fmt::print("tokenizer bytes: ids 0..255 are bytes, 256 stands before each document\n");
  print("train", text.train);
  print("val", text.val);
  fmt::print("train on them with data.path: {}\n", options.out);
  return 0;
}

void add_tokenize_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command =
      app.add_subcommand("tokenize", "write text as token shards that heddle and llm.c read");
  command->add_option("input", options->input, "a .txt or .jsonl file, or a folder of such")
      ->required();
  command->add_option("--out", options->out, "folder for the shards")->required();
  command->add_option("--val-input", options->val_input,
                      "validation text; without it the end of the input");
  command
      ->add_option("--val-fraction", options->val_fraction,
                   "share of the bytes at the end that is kept for validation (0.05)")
      ->check(CLI::Range(0.0, 0.5));
  command->add_option("--kind", options->kind, "what the input is, when its ending does not say")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}));
  command->add_option("--document", options->document, "what a document is in a .txt")
      ->check(CLI::IsMember({"file", "paragraph"}));
  command->callback([options, &exit_code] { exit_code = run_tokenize(*options); });
}

}  // namespace heddle
