#include "framework/optim/sharded_step.h"

#include <algorithm>

#include "framework/core/error.h"

namespace heddle {
namespace {

// Slots of kGradients: split tensors take turns in one, buckets of layers in two, lambdas have one.
constexpr size_t kSplitSlot = 0, kLayerSlots = 1, kLambdaSlot = 3, kSlots = 4;

// What every rank adds to the gathering of its norm pieces: sum of losses, tokens, signal.
constexpr int64_t kStepHeader = 3;

// Losses of sequences are rounded to multiples of 2^-20 nats, so that sums below 2^32 are exact.
constexpr double kLossGrid = 1.5 * 4294967296.0;

float* f32(const DeviceBuffer& buffer) {
  return static_cast<float*>(buffer.get());
}
double* f64(const DeviceBuffer& buffer) {
  return static_cast<double*>(buffer.get());
}

// Which slot each bucket goes through.
std::vector<size_t> choose_slots(const Ownership& own) {
  std::vector<size_t> slots;
  size_t turn = 0;
  for (const Bucket& b : own.buckets()) {
    if (b.split) {
      slots.push_back(kSplitSlot);
    } else if (b.closes == kEmbeddingPart) {
      slots.push_back(kLambdaSlot);
    } else {
      slots.push_back(kLayerSlots + turn++ % 2);
    }
  }
  return slots;
}

std::vector<int64_t> slot_sizes(const Ownership& own) {
  std::vector<int64_t> sizes(kSlots);
  const std::vector<size_t> slots = choose_slots(own);
  for (size_t b = 0; b < slots.size(); ++b) {
    sizes[slots[b]] = std::max(sizes[slots[b]], own.buckets()[b].size);
  }
  return sizes;
}

int64_t sum(const std::vector<int64_t>& values) {
  int64_t total = 0;
  for (const int64_t v : values) total += v;
  return total;
}

size_t floats(int64_t n) {
  return static_cast<size_t>(n) * sizeof(float);
}
size_t doubles(int64_t n) {
  return static_cast<size_t>(n) * sizeof(double);
}

}  // namespace

std::vector<MemoryItem> plan_gradient_memory(const ShardOptions& options,
                                             const Ownership& ownership, int rank) {
  const int64_t all = ownership.layout().total();
  std::vector<MemoryItem> items;
  if (options.level == ShardLevel::kGradients) {
    items.push_back({"gradients", floats(ownership.elements(rank))});
    items.push_back({"gradient buckets", floats(sum(slot_sizes(ownership)))});
  } else {
    items.push_back({"gradients", floats(all)});
  }
  if (options.reproducible) items.push_back({"exact gradient sums", 2 * doubles(all)});
  return items;
}

int64_t step_bytes(const ShardOptions& options, const Ownership& ownership, int rank) {
  const int64_t peers = ownership.world_size() - 1;
  const int64_t all = ownership.layout().total(), own = ownership.elements(rank);
  const int64_t reductions = options.level == ShardLevel::kGradients ? options.micro_steps : 1;
  const auto element =
      static_cast<int64_t>(options.reproducible ? 2 * sizeof(double) : sizeof(float));
  const auto norms = std::count_if(ownership.norm_pieces().begin(), ownership.norm_pieces().end(),
                                   [&](const Piece& p) { return p.rank == rank; });
  return element * reductions * (all - own) + static_cast<int64_t>(floats(peers * own)) +
         static_cast<int64_t>(doubles(peers * (kStepHeader + norms)));
}

ShardedStep::ShardedStep(const ShardOptions& options, const Ownership& ownership, Gpt& model,
                         Optimizer& optimizer, Communicator& comm)
    : options_(options),
      own_(ownership),
      model_(model),
      optimizer_(optimizer),
      comm_(comm),
      ops_(model.device().ops()),
      parameters_(ownership.buckets().size()),
      poll_([this] { comm_.poll(); }) {
  HEDDLE_CHECK(!(options.reproducible && options.level == ShardLevel::kGradients),
               "exact sums are kept whole");
  if (options.level == ShardLevel::kGradients) plan_slots();
  if (options.reproducible) {
    const int64_t all = own_.layout().total();
    high_ = model.device().allocate(doubles(all), "exact gradient sums");
    low_ = model.device().allocate(doubles(all), "exact gradient sums");
  }
  plan_norm();
  // In the order in which forward asks; of what AdamW updates, the embeddings may leave before
  // Muon begins.
  for (size_t b = own_.buckets().size(); b-- > 0;) {
    (own_.buckets()[b].closes == kEmbeddingPart ? gather_first_ : gather_last_).push_back(b);
  }
  model_.set_hooks(this);
}

ShardedStep::~ShardedStep() {
  model_.set_hooks(nullptr);
}

void ShardedStep::plan_slots() {
  const std::vector<int64_t> sizes = slot_sizes(own_);
  slot_of_ = choose_slots(own_);
  shard_ = model_.device().allocate(floats(own_.elements(comm_.rank())), "gradients");
  slot_memory_ = model_.device().allocate(floats(sum(sizes)), "gradient buckets");
  slots_.resize(kSlots);
  float* at = f32(slot_memory_);
  for (size_t s = 0; s < kSlots; ++s) {
    slots_[s].data = at;
    at += sizes[s];
  }
}

void ShardedStep::plan_norm() {
  std::vector<size_t> next;
  gather_counts_.assign(static_cast<size_t>(comm_.world_size()), kStepHeader);
  for (const Piece& p : own_.norm_pieces()) ++gather_counts_[static_cast<size_t>(p.rank)];
  size_t begin = 0;
  for (const int64_t count : gather_counts_) {
    next.push_back(begin + kStepHeader);
    begin += static_cast<size_t>(count);
  }
  gathered_.resize(begin);
  for (const Piece& p : own_.norm_pieces()) {
    const size_t place = next[static_cast<size_t>(p.rank)]++;
    norm_places_.push_back(place);
    if (p.rank != comm_.rank()) continue;
    const int64_t flat = own_.layout().params()[static_cast<size_t>(p.param)].offset + p.begin;
    const int64_t offset =
        options_.level == ShardLevel::kGradients ? own_.shard_offset(comm_.rank(), flat) : flat;
    norm_parts_.push_back({offset, p.count, place});
  }
  norm_tensors_.resize(norm_parts_.size());
  norm_sums_.resize(norm_parts_.size());
}

const float* ShardedStep::gradients() const {
  return options_.level == ShardLevel::kGradients ? f32(shard_) : model_.grads();
}

std::span<float> ShardedStep::bucket_span(float* base, size_t b) const {
  return {base, static_cast<size_t>(own_.buckets()[b].size)};
}

void ShardedStep::begin() {
  micro_step_ = 0;
  loss_ = {};
  if (options_.level != ShardLevel::kGradients) model_.zero_grads();
  if (options_.reproducible) {
    ops_.zero(high_.get(), doubles(own_.layout().total()));
    ops_.zero(low_.get(), doubles(own_.layout().total()));
  }
}

void ShardedStep::begin_micro_step(bool last) {
  last_ = last;
}

void ShardedStep::end_micro_step(const LossSum& sum) {
  loss_.tokens += sum.tokens;
  if (options_.reproducible) {
    loss_.nats += (sum.nats + kLossGrid) - kLossGrid;
    ops_.add_exact(model_.grads(), f64(high_), f64(low_), own_.layout().total());
  } else {
    loss_.nats += sum.nats;
  }
  ++micro_step_;
}

void ShardedStep::before_forward(int64_t part) {
  for (size_t b = 0; b < parameters_.size(); ++b) {
    if (own_.buckets()[b].closes == part) parameters_[b].wait();
  }
}

void ShardedStep::before_backward(int64_t part) {
  if (options_.level != ShardLevel::kGradients) return;
  for (size_t b = 0; b < own_.buckets().size(); ++b) {
    if (own_.buckets()[b].opens == part) open_bucket(b);
  }
}

void ShardedStep::after_backward(int64_t part) {
  if (options_.reproducible) return;
  for (size_t b = 0; b < own_.buckets().size(); ++b) {
    if (own_.buckets()[b].closes == part) close_bucket(b);
  }
}

void ShardedStep::open_bucket(size_t b) {
  Slot& slot = slots_[slot_of_[b]];
  drain(slot);
  const Bucket& bucket = own_.buckets()[b];
  ops_.zero(slot.data, floats(bucket.size));
  model_.place_gradients(bucket.begin, bucket.begin + bucket.size, slot.data);
}

// The gradients of a bucket are complete on this rank: for this micro-step, or for the step.
void ShardedStep::close_bucket(size_t b) {
  if (comm_.world_size() == 1) return;
  const Bucket& bucket = own_.buckets()[b];
  if (options_.level == ShardLevel::kGradients) {
    Slot& slot = slots_[slot_of_[b]];
    slot.work = comm_.start_reduce_scatter_sum(bucket_span(slot.data, b), bucket.counts);
    slot.bucket = static_cast<int>(b);
    slot.first = micro_step_ == 0;
    return;
  }
  if (!last_) return;
  const std::span<float> gradients = bucket_span(model_.grads() + bucket.begin, b);
  comm_.start_reduce_scatter_sum(gradients, bucket.counts);
  if (options_.level == ShardLevel::kNone) comm_.start_all_gather(gradients, bucket.counts);
}

// Takes the own part of a reduced bucket into the shard.
void ShardedStep::drain(Slot& slot) {
  if (slot.bucket < 0) return;
  slot.work.wait();
  const auto b = static_cast<size_t>(slot.bucket);
  const int rank = comm_.rank();
  const float* own = slot.data + (own_.own_begin(rank, b) - own_.buckets()[b].begin);
  float* shard = f32(shard_) + own_.shard_begin(rank, b);
  const int64_t count = own_.buckets()[b].counts[static_cast<size_t>(rank)];
  if (slot.first) {
    ops_.copy(shard, own, count);
  } else {
    ops_.add(shard, own, count);
  }
  slot.bucket = -1;
}

// This rank has no sequences left; its part of every sum is zero.
void ShardedStep::join_empty_micro_step() {
  for (size_t b = 0; b < own_.buckets().size(); ++b) {
    Slot& slot = slots_[slot_of_[b]];
    drain(slot);
    ops_.zero(slot.data, floats(own_.buckets()[b].size));
    close_bucket(b);
  }
  ++micro_step_;
}

// Sums of exact values are exact in any order; the own part is then rounded to fp32, once.
void ShardedStep::reduce_exact() {
  for (const Bucket& bucket : own_.buckets()) {
    const auto size = static_cast<size_t>(bucket.size);
    comm_.start_reduce_scatter_sum(std::span(f64(high_) + bucket.begin, size), bucket.counts);
    comm_.start_reduce_scatter_sum(std::span(f64(low_) + bucket.begin, size), bucket.counts).wait();
  }
  const int rank = comm_.rank();
  for (size_t b = 0; b < own_.buckets().size(); ++b) {
    const Bucket& bucket = own_.buckets()[b];
    const int64_t at = own_.own_begin(rank, b);
    ops_.round_exact(f64(high_) + at, f64(low_) + at, model_.grads() + at,
                     bucket.counts[static_cast<size_t>(rank)]);
    if (options_.level != ShardLevel::kNone) continue;
    comm_.all_gather(bucket_span(model_.grads() + bucket.begin, b), bucket.counts);
  }
}

StepTotals ShardedStep::reduce(int signal) {
  if (options_.level == ShardLevel::kGradients) {
    while (micro_step_ < options_.micro_steps) join_empty_micro_step();
    for (Slot& slot : slots_) drain(slot);
  }
  if (options_.reproducible) reduce_exact();
  return gather_totals(signal);
}

// One gathering for all that the ranks must agree on; it comes behind every bucket. Added up in an
// order that does not depend on who owns what.
StepTotals ShardedStep::gather_totals(int signal) {
  // The own sums exist once the reductions under way are finished.
  comm_.wait_all();
  size_t own = 0;
  for (int r = 0; r < comm_.rank(); ++r) own += static_cast<size_t>(gather_counts_[r]);
  gathered_[own] = loss_.nats;
  gathered_[own + 1] = static_cast<double>(loss_.tokens);
  gathered_[own + 2] = signal;
  for (size_t i = 0; i < norm_parts_.size(); ++i) {
    norm_tensors_[i] = {gradients() + norm_parts_[i].offset,
                        static_cast<size_t>(norm_parts_[i].count)};
  }
  ops_.sums_of_squares(norm_tensors_, norm_sums_.data());
  for (size_t i = 0; i < norm_parts_.size(); ++i) gathered_[norm_parts_[i].place] = norm_sums_[i];
  comm_.all_gather(std::span<double>(gathered_), gather_counts_);

  StepTotals totals;
  size_t at = 0;
  for (const int64_t count : gather_counts_) {
    totals.nats += gathered_[at];
    totals.tokens += static_cast<int64_t>(gathered_[at + 1]);
    totals.signal = std::max(totals.signal, static_cast<int>(gathered_[at + 2]));
    at += static_cast<size_t>(count);
  }
  for (const size_t place : norm_places_) totals.grad_squares += gathered_[place];
  return totals;
}

void ShardedStep::start_gather(size_t b) {
  const Bucket& bucket = own_.buckets()[b];
  parameters_[b] =
      comm_.start_all_gather(bucket_span(model_.params() + bucket.begin, b), bucket.counts);
}

void ShardedStep::update(int64_t iteration, float grad_scale) {
  const bool gathers = options_.level != ShardLevel::kNone;
  optimizer_.step_adamw(iteration, model_.params(), gradients(), grad_scale);
  if (gathers) {
    for (const size_t b : gather_first_) start_gather(b);
  }
  optimizer_.step_muon(iteration, model_.params(), gradients(), grad_scale, poll_);
  if (gathers) {
    for (const size_t b : gather_last_) start_gather(b);
  }
}

void ShardedStep::wait_parameters() {
  for (Work& work : parameters_) work.wait();
}

}  // namespace heddle
