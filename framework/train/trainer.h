// The training loop: micro-steps, the sharded optimizer step, and what happens between steps
// (evaluation, samples, checkpoints, signals).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/checkpoint/run_folder.h"
#include "framework/model/gpt.h"
#include "framework/optim/optimizer.h"
#include "framework/optim/ownership.h"
#include "framework/optim/sharded_step.h"
#include "framework/train/evaluate.h"
#include "framework/train/metrics.h"
#include "framework/train/progress.h"
#include "framework/train/run.h"
#include "framework/train/signals.h"
#include "framework/train/snapshot.h"

namespace heddle {

// What one optimizer step measured; the same on all ranks but for the times.
struct StepResult {
  double loss = 0;  // nats per token over the global batch
  double grad_norm = 0;
  double seconds = 0;
  double comm_seconds = 0;  // of them, the calling thread in communication
  // A communication was under way, whether or not the thread noticed; bytes handed to other ranks.
  double comm_flight_seconds = 0;
  int64_t comm_bytes = 0;
  double optim_seconds = 0;  // of them, update
  int stop_signal = 0;       // that a rank had received before the update
};

class Trainer {
 public:
  // Builds the model, its first weights (drawn, train.init_from, or a checkpoint) and the run
  // folder. Collective. `signals` and `watchdog` outlive the trainer.
  Trainer(Run run, StopSignals& signals, Watchdog& watchdog);

  // Trains to the end or until a signal; saves; writes a sample and the final evaluation.
  void train();

  // One optimizer step at the current position. For tests and benchmarks; train() is made of it.
  StepResult step();

  const Position& position() const { return position_; }
  Gpt& model() { return *model_; }
  const std::string& folder() const { return folder_; }

 private:
  void load_start();
  std::optional<Checkpoint> checkpoint_to_resume();
  void open_folder(bool resumed);
  void run_micro_steps();
  void between_steps(const StepResult& result, int stop_signal);
  void report(const StepResult& result);
  void report_memory();
  void evaluate(bool final);
  void sample();
  // A failure is logged and training goes on, unless `must`: nothing would be left of the run.
  void save(bool must);

  Run run_;
  StopSignals& signals_;
  Watchdog& watchdog_;
  Ownership ownership_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ShardedStep> sharded_;
  Position position_;
  std::string folder_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<Progress> progress_;
  double peak_flops_ = 0;
  double smooth_seconds_ = 0;
  double last_bits_per_byte_ = 0;
  int64_t saved_step_ = -1;
  std::string last_checkpoint_;
  std::vector<int32_t> tokens_, targets_;
};

}  // namespace heddle
