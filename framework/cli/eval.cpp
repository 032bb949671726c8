// heddle eval CHECKPOINT...: validation loss, and recall by distance, one row a checkpoint.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/cli/commands.h"
#include "framework/comm/self/self_communicator.h"
#include "framework/data/dataset.h"
#include "framework/train/evaluate.h"
#include "framework/train/loaded_model.h"

namespace heddle {
namespace {

struct EvalCommand {
  std::vector<std::string> checkpoints;
  std::string data;
  int64_t tokens = 0;
  int64_t recalls = 1000;
  int64_t batch = 8;
  int64_t threads = 0;
};

struct Row {
  std::string name;
  int64_t step = 0;
  Evaluation loss;
  std::optional<RecallTable> recall;
};

// "runs/a/checkpoints/step-000180" -> "a"
std::string run_name(const std::string& path) {
  const auto at = path.find("/checkpoints/");
  const std::string run = at == std::string::npos ? path : path.substr(0, at);
  return run.substr(run.find_last_of('/') + 1);
}

Row evaluate_checkpoint(const std::string& path, const EvalCommand& c, Communicator& comm) {
  LoadedModel loaded = load_model(path, {.threads = c.threads, .batch = c.batch});
  DataConfig data = loaded.config.data;
  if (!c.data.empty()) {
    data.path = c.data;
    data.kind = "auto";
  }
  const ModelSpec& spec = loaded.model->spec();
  const auto dataset = open_dataset(data, spec.sequence_len, spec.vocab_size);
  Row row{run_name(loaded.path), loaded.step, {}, std::nullopt};
  const int64_t tokens = c.tokens > 0 ? c.tokens : loaded.config.train.eval_tokens;
  if (dataset->val_sequences() > 0) {
    row.loss = evaluate_loss(*loaded.model, *dataset, comm, tokens);
  }
  if (c.recalls > 0) row.recall = evaluate_recall(*loaded.model, *dataset, comm, c.recalls);
  return row;
}

void print_rows(const std::vector<Row>& rows) {
  size_t width = 10;
  for (const Row& r : rows) width = std::max(width, r.name.size());
  std::string head = fmt::format("{:<{}}  {:>6}  {:>8}  {:>8}", "run", width, "step", "loss", "bpb");
  for (const Row& r : rows) {
    if (!r.recall) continue;
    for (const auto& b : r.recall->buckets()) {
      head += fmt::format("  {:>7}", fmt::format("{}-{}", b.from, b.to));
    }
    break;
  }
  std::printf("%s\n", head.c_str());
  for (const Row& r : rows) {
    std::string line =
        fmt::format("{:<{}}  {:>6}  {:>8.4f}  {:>8}", r.name, width, r.step, r.loss.loss,
                    r.loss.bits_per_byte > 0 ? fmt::format("{:.4f}", r.loss.bits_per_byte) : "-");
    if (r.recall) {
      for (const auto& b : r.recall->buckets()) line += fmt::format("  {:>7.3f}", b.accuracy());
    }
    std::printf("%s\n", line.c_str());
  }
}

void run_eval(const EvalCommand& c) {
  const std::unique_ptr<Communicator> comm = make_self_communicator();
  std::vector<Row> rows;
  for (const std::string& path : c.checkpoints) {
    rows.push_back(evaluate_checkpoint(path, c, *comm));
  }
  print_rows(rows);
  if (rows.front().recall) {
    std::printf(
        "recall: share of values remembered, by distance in tokens; chance is %.4f; at least %ld "
        "recalls a column\n",
        kRecallChance, static_cast<long>(c.recalls));
  }
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  auto c = std::make_shared<EvalCommand>();
  CLI::App* command = app.add_subcommand("eval", "Validation loss and recall of checkpoints");
  command->add_option("checkpoints", c->checkpoints, "run folders or checkpoint folders")->required();
  command->add_option("--data", c->data, "other data than the run's; its end is the validation part");
  command->add_option("--tokens", c->tokens, "validation tokens; 0: the run's train.eval_tokens")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--recalls", c->recalls, "recalls a distance bucket, at least; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--batch", c->batch, "sequences of a forward pass")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--threads", c->threads, "compute threads; 0: all processors")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->callback([c, &exit_code] {
    run_eval(*c);
    exit_code = 0;
  });
}

}  // namespace heddle
