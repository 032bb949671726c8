#include "framework/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "framework/checkpoint/weights.h"
#include "framework/config/dump.h"
#include "framework/core/activity.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/log.h"
#include "framework/core/parallel_for.h"
#include "framework/generate/generate.h"
#include "framework/train/dry_run.h"
#include "framework/train/fault.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of the time in which communication was under way: how much the thread spent on other work.
double hidden_share(const StepResult& r) {
  if (r.comm_flight_seconds <= 0) return 0;
  return std::clamp(1 - r.comm_seconds / r.comm_flight_seconds, 0.0, 1.0);
}

constexpr double kSmoothing = 0.9;  // of the step time that ETA and tokens/s are read from
// Written last of all: the run has come to its end. Exit code 0 alone also says "stopped and
// saved".
constexpr const char* kFinished = "finished.json";
constexpr int64_t kRecallsPerBucket = 1000;
constexpr float kSampleTemperature = 0.8f;

}  // namespace

Trainer::Trainer(Run run, StopSignals& signals, Watchdog& watchdog)
    : run_(std::move(run)),
      signals_(signals),
      watchdog_(watchdog),
      ownership_(make_ownership(run_.config, run_.spec, run_.comm->world_size())) {
  const Config& c = run_.config;
  const ShardOptions shard = shard_options(c, run_.comm->world_size());
  model_ = std::make_unique<Gpt>(
      run_.spec, *run_.device, *run_.attention, run_.batch.micro_batch, run_.spec.sequence_len,
      true, ParamPlacement{ownership_.layout(), shard.level != ShardLevel::kGradients});
  optimizer_ = std::make_unique<Optimizer>(
      c.optim,
      plan_optimizer(c.optim, ownership_, shard.level, run_.comm->rank(), c.train.total_batch_size),
      c.train.num_iterations, *run_.device);
  sharded_ = std::make_unique<ShardedStep>(shard, ownership_, *model_, *optimizer_, *run_.comm);
  if (c.device.cuda_graph == "always") {
    if (const std::string why = model_->replay_refusal(); !why.empty()) {
      throw config_error("device.cuda_graph: always, but " + why, "set device.cuda_graph: auto");
    }
  }
  const auto micro_tokens = static_cast<size_t>(run_.batch.micro_batch * run_.spec.sequence_len);
  tokens_.resize(micro_tokens);
  targets_.resize(micro_tokens);
  load_start();
  const double peak = c.train.peak_flops.value_or(0);
  peak_flops_ = peak > 0 ? peak : run_.device->measure_peak_flops();
  if (run_.chief()) {
    log::info("peak: {:.1f} GFLOP/s a rank{}", peak_flops_ / 1e9,
              peak > 0 ? " (train.peak_flops)" : ", measured");
  }
}

void Trainer::load_start() {
  const std::optional<Checkpoint> resume = checkpoint_to_resume();
  if (resume) {
    position_ = restore_snapshot(*resume, *run_.dataset, *model_, *optimizer_);
    // A run that continues another's checkpoint has none of its own yet.
    if (run_.config.train.resume == "auto") saved_step_ = position_.step;
    last_checkpoint_ = resume->path();
    if (run_.chief()) log::info("resumed {} at step {}", resume->path(), position_.step);
  } else if (!run_.config.train.init_from.empty()) {
    load_model_weights(Weights::load(run_.config.train.init_from), *model_);
    if (run_.chief()) log::info("initial weights from {}", run_.config.train.init_from);
  } else {
    model_->init_params(static_cast<uint64_t>(run_.config.train.seed));
  }
  open_folder(resume.has_value());
}

// One rank looks and compares every byte, so that all ranks take the same checkpoint or none.
std::optional<Checkpoint> Trainer::checkpoint_to_resume() {
  const Config& c = run_.config;
  if (c.train.resume == "never") return std::nullopt;
  std::optional<Checkpoint> checkpoint;
  const std::string path = from_first_rank(*run_.comm, [&] {
    if (c.train.resume != "auto") {
      checkpoint = Checkpoint::open(c.train.resume);
    } else {
      std::string skipped;
      checkpoint = open_newest(checkpoints_folder(c.log.dir + "/" + c.log.name), &skipped);
      if (!skipped.empty()) log::warn("{}", skipped);
      if (!checkpoint) log::info("train.resume: auto found no checkpoint; this is a fresh start");
    }
    return checkpoint ? checkpoint->path() : std::string();
  });
  if (!run_.chief() && !path.empty()) checkpoint = Checkpoint::open(path, Verify::kSizes);
  return checkpoint;
}

void Trainer::open_folder(bool resumed) {
  const Config& c = run_.config;
  folder_ = from_first_rank(*run_.comm, [&] {
    folder_ = c.log.dir + "/" + c.log.name;
    if (c.train.resume != "auto") {
      folder_ = create_run_folder(c.log.dir, c.log.name);
    } else {
      file_system().create_directories(folder_);
    }
    lock_ = std::make_unique<RunLock>(folder_);
    remove_failure_records(folder_);
    file_system().remove_all(folder_ + "/" + kFinished);
    log::add_file(folder_ + "/log.txt");
    write_file_atomically(folder_ + "/config.yaml", dump_config(c));
    metrics_ =
        std::make_unique<MetricsFile>(folder_ + "/metrics.jsonl", resumed ? position_.step : 0);
    progress_ = std::make_unique<Progress>(c.log.every, run_.launch.launcher == Launcher::kSingle);
    report_memory();
    log::info("run folder {}", folder_);
    return folder_;
  });
  watchdog_.set_run_folder(folder_);
}

void Trainer::run_micro_steps() {
  const BatchPlan& plan = run_.batch;
  const int64_t len = run_.spec.sequence_len;
  for (int64_t done = 0; done < plan.count;) {
    const int64_t batch = std::min(plan.micro_batch, plan.count - done);
    for (int64_t b = 0; b < batch; ++b) {
      run_.dataset->train_sequence(position_.sequences + plan.first + done + b,
                                   tokens_.data() + b * len, targets_.data() + b * len);
    }
    activity::progress();
    if (fault(FaultPoint::kBackward, position_.step + 1)) {
      sharded_->wait_parameters();
      const std::vector<float> nans(static_cast<size_t>(model_->layout().total()), std::nanf(""));
      run_.device->upload(model_->params(), nans.data(), nans.size() * sizeof(float));
    }
    done += batch;
    sharded_->begin_micro_step(done == plan.count);
    sharded_->end_micro_step(model_->forward_backward(tokens_.data(), targets_.data(), batch));
  }
}

StepResult Trainer::step() {
  const int64_t number = position_.step + 1;
  const activity::PhaseScope phase(activity::Phase::kStep);
  activity::set_step(number);
  fault(FaultPoint::kStep, number);
  const auto started = Clock::now();
  const CommCounters before = run_.comm->counters();
  run_.attention->set_step(position_.step + 1);
  sharded_->begin();
  run_micro_steps();
  fault(FaultPoint::kReduce, number);
  const StepTotals totals = sharded_->reduce(signals_.received());

  StepResult result;
  result.stop_signal = totals.signal;
  const double tokens = std::max(static_cast<double>(totals.tokens), 1.0);
  const auto grad_scale = static_cast<float>(1.0 / tokens);
  result.loss = totals.nats / tokens;
  result.grad_norm = std::sqrt(totals.grad_squares) * static_cast<double>(grad_scale);
  // Every rank sees the same sums, so all stop together.
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    throw numerics_error(fmt::format("step {}: the loss is {} and the gradient norm {}",
                                     position_.step + 1, result.loss, result.grad_norm),
                         run_.config.train.reproducible
                             ? "lower the rates under optim:; train.reproducible holds gradients "
                               "of one sequence below 32768 only"
                             : "lower the rates under optim:, or resume from the last checkpoint "
                               "with train.resume=auto");
  }
  fault(FaultPoint::kUpdate, number);
  const auto updating = Clock::now();
  sharded_->update(position_.step, optimizer_->clipped_scale(grad_scale, result.grad_norm));
  result.optim_seconds = seconds_since(updating);

  result.seconds = seconds_since(started);
  const CommCounters& after = run_.comm->counters();
  result.comm_seconds = after.seconds_inside - before.seconds_inside;
  result.comm_flight_seconds = after.seconds_in_flight - before.seconds_in_flight;
  result.comm_bytes = after.bytes_sent - before.bytes_sent;
  position_.step += 1;
  position_.sequences += run_.batch.global_sequences;
  position_.tokens += totals.tokens;
  position_.train_seconds += result.seconds;
  return result;
}

void Trainer::train() {
  signals_.arm();
  const int64_t total = run_.config.train.num_iterations;
  int stop_signal = 0;
  while (position_.step < total && stop_signal == 0) {
    const StepResult result = step();
    stop_signal = result.stop_signal;
    between_steps(result, stop_signal);
  }
  if (progress_) progress_->clear();
  if (stop_signal != 0) {
    save(true);
    if (run_.chief()) {
      log::info("stopped by signal {} after step {}; continue with train.resume=auto log.name={}",
                stop_signal, position_.step, std::filesystem::path(folder_).filename().string());
    }
  } else {
    evaluate(true);
    if (run_.config.checkpoint.at_end) save(true);
    sample();
  }
  fault(FaultPoint::kEnd, position_.step);
  if (run_.chief() && position_.step == total) {
    write_file_atomically(folder_ + "/" + kFinished,
                          json::pretty(json::object{{"step", position_.step}}));
  }
  run_.comm->barrier();
}

void Trainer::between_steps(const StepResult& result, int stop_signal) {
  const Config& c = run_.config;
  const bool last = position_.step == c.train.num_iterations || stop_signal != 0;
  report(result);
  if (last) return;
  const auto due = [&](int64_t every) { return every > 0 && position_.step % every == 0; };
  if (due(c.train.eval_every)) evaluate(false);
  if (due(c.train.sample_every)) sample();
  if (due(c.checkpoint.every)) save(false);
}

// One line of metrics: MiB by kind, a number per rank.
void Trainer::report_memory() {
  json::object line{{"step", position_.step}};
  for (int rank = 0; rank < run_.comm->world_size(); ++rank) {
    for (const MemoryItem& item : training_memory(run_, ownership_, rank)) {
      json::value& list = line["memory_mib/" + item.kind];
      if (list.is_null()) list = json::array();
      list.as_array().push_back(static_cast<double>(item.bytes) / (1024.0 * 1024.0));
    }
  }
  metrics_->write(line);
}

void Trainer::report(const StepResult& result) {
  if (!run_.chief()) return;
  const Config& c = run_.config;
  smooth_seconds_ = smooth_seconds_ == 0
                        ? result.seconds
                        : kSmoothing * smooth_seconds_ + (1 - kSmoothing) * result.seconds;
  const auto step_tokens =
      static_cast<double>(run_.batch.global_sequences * run_.spec.sequence_len);
  const double rate = step_tokens / result.seconds;
  const double flops = flops_per_token(run_.spec);
  const double peak = peak_flops_ * run_.comm->world_size();
  const double lr_multiplier = optimizer_->values(position_.step - 1).lr_multiplier;

  metrics_->write({{"step", position_.step},
                   {"tokens", position_.tokens},
                   {"train/loss", result.loss},
                   {"train/lrm", lr_multiplier},
                   {"train/dt", result.seconds},
                   {"train/tok_per_sec", rate},
                   {"train/mfu", flops * rate / peak},
                   {"train/grad_norm", result.grad_norm},
                   {"memory/peak_rss_gib",
                    static_cast<double>(peak_resident_bytes()) / (1024.0 * 1024 * 1024)},
                   {"train/comm_ms", result.comm_seconds * 1e3},
                   {"train/comm_hidden", hidden_share(result)},
                   {"train/comm_bytes", result.comm_bytes},
                   {"train/optim_ms", result.optim_seconds * 1e3},
                   {"run/ranks", run_.comm->world_size()},
                   {"run/ranks_per_host", run_.comm->local_size()},
                   {"run/threads", num_threads()},
                   {"run/processors", available_processors()},
                   {"total_training_time", position_.train_seconds}});

  const double smooth_rate = step_tokens / smooth_seconds_;
  progress_->step({.step = position_.step,
                   .total = c.train.num_iterations,
                   .loss = result.loss,
                   .bits_per_byte = last_bits_per_byte_,
                   .lr_multiplier = lr_multiplier,
                   .tokens_per_second = smooth_rate,
                   .mfu = flops * smooth_rate / peak,
                   .seconds_left = smooth_seconds_ *
                                   static_cast<double>(c.train.num_iterations - position_.step)});
}

void Trainer::evaluate(bool final) {
  if (run_.dataset->val_sequences() == 0 || run_.config.train.eval_tokens == 0) return;
  const activity::PhaseScope phase(activity::Phase::kEvaluate);
  fault(FaultPoint::kEval, position_.step);
  const Evaluation e =
      evaluate_loss(*model_, *run_.dataset, *run_.comm, run_.config.train.eval_tokens);
  std::optional<RecallTable> recall;
  if (final) recall = evaluate_recall(*model_, *run_.dataset, *run_.comm, kRecallsPerBucket);
  last_bits_per_byte_ = e.bits_per_byte;
  if (!run_.chief()) return;

  json::object line{
      {"step", position_.step}, {"val/loss", e.loss}, {"val/tokens", e.tokens}};
  if (e.bits_per_byte > 0) line["val/bpb"] = e.bits_per_byte;
  if (recall) {
    json::array buckets;
    for (const auto& b : recall->buckets()) {
      buckets.push_back(
          {{"from", b.from}, {"to", b.to}, {"correct", b.correct}, {"total", b.total}});
    }
    line["val/recall"] = std::move(buckets);
  }
  metrics_->write(line);
  progress_->clear();
  log::info("step {}: validation loss {:.4f}{}", position_.step, e.loss,
            e.bits_per_byte > 0 ? fmt::format(", {:.4f} bits per byte", e.bits_per_byte) : "");
  if (recall) log::info("recall by distance\n{}", recall->text());
}

void Trainer::sample() {
  const Config& c = run_.config;
  const Tokenizer& tokenizer = run_.dataset->tokenizer();
  if (!run_.chief() || c.train.sample_tokens == 0 || tokenizer.bos() < 0) return;
  const activity::PhaseScope phase(activity::Phase::kSample);
  GenerateOptions options;
  options.max_tokens = c.train.sample_tokens;
  options.sampler.temperature = kSampleTemperature;
  options.sampler.seed = static_cast<uint64_t>(c.train.seed);
  options.stop_tokens = {tokenizer.bos()};
  const std::vector<int32_t> prompt{tokenizer.bos()};
  const Generation text = generate(*model_, prompt, options);
  progress_->clear();
  log::info("the model writes: {}", tokenizer.decode(text.tokens));
}

void Trainer::save(bool must) {
  if (saved_step_ == position_.step) return;
  const activity::PhaseScope phase(activity::Phase::kCheckpoint);
  fault(FaultPoint::kCheckpoint, position_.step);
  sharded_->wait_parameters();
  if (run_.chief()) progress_->clear();
  const bool writes_state = run_.chief() || sharded_->level() != ShardLevel::kNone;
  std::string failure;
  try {
    last_checkpoint_ = save_checkpoint(
        *run_.comm, checkpoints_folder(folder_),
        make_snapshot(*model_, *optimizer_, *run_.dataset, run_.config, position_, writes_state),
        run_.config.checkpoint.keep);
    if (run_.chief()) log::info("checkpoint {}", last_checkpoint_);
  } catch (const Error& e) {
    if (e.code() == ExitCode::kCommunication) throw;
    failure = e.message() + ". " + e.remedy();
  }
  if (failure.empty()) {
    saved_step_ = position_.step;
  } else if (must) {
    throw environment_error("checkpoint", failure);
  } else if (run_.chief()) {
    log::error("{}; training goes on, the last good checkpoint is {}", failure,
               last_checkpoint_.empty() ? "none yet" : last_checkpoint_);
  }
}

}  // namespace heddle
