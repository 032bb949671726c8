#include "framework/report/step_model.h"

#include <algorithm>
#include <cmath>

#include "framework/model/pass_hooks.h"

namespace heddle {
namespace {

constexpr double kBackwardShare = 2.0 / 3.0;  // of a segment's FLOPs
// Bytes per element: AdamW reads parameter, gradient and two moments and writes three of them.
constexpr double kAdamWBytes = 28;
constexpr double kNormBytes = 4;

struct Overlap {
  double total = 0;    // seconds of the collectives
  double exposed = 0;  // seconds that they add
};

// What computing adds to a transfer that it cannot leave to the hardware.
double exposed_with(const DeviceSpec& device, double total, double exposed) {
  return std::min(total, (1 - device.overlap) * total + exposed);
}

double total_flops(const StepLoad& load) {
  double flops = 0;
  for (const Segment& s : load.segments) flops += s.flops;
  return flops;
}

double bucket_seconds(const DeviceSpec& device, const Topology& topology,
                      const ExchangeBucket& bucket, double scale) {
  return exchange_seconds(device, topology, bucket.bytes * scale, bucket.largest * scale);
}

// Gradients are complete from the last segment to the first; a bucket is sent when it closes, one
// after the other. `seconds` is the time of backward and `passes` the collectives that a bucket
// goes through.
Overlap beside_backward(const DeviceSpec& device, const Topology& topology, const StepLoad& load,
                        double seconds, double passes, double scale) {
  const double flops = total_flops(load);
  Overlap result;
  double clock = 0, channel = 0;
  auto bucket = load.buckets.begin();
  for (size_t s = load.segments.size(); s-- > 0;) {
    clock += seconds * load.segments[s].flops / flops;
    for (; bucket != load.buckets.end() && bucket->closes == s; ++bucket) {
      const double time = passes * bucket_seconds(device, topology, *bucket, scale);
      result.total += time;
      channel = std::max(channel, clock) + time * device.overlap;
    }
  }
  if (!load.overlap) return {result.total, result.total};
  result.exposed = exposed_with(device, result.total, std::max(0.0, channel - seconds));
  return result;
}

// Parameters travel in the order in which forward asks for them, those of the first segment while
// Muon still works (AdamW updates them before), and a segment waits for its own.
Overlap beside_forward(const DeviceSpec& device, const Topology& topology, const StepLoad& load,
                       double seconds, double muon_seconds, double scale) {
  const double flops = total_flops(load);
  Overlap result;
  double clock = 0, channel = -muon_seconds;
  auto bucket = load.buckets.rbegin();
  for (size_t s = 0; s < load.segments.size(); ++s) {
    for (; bucket != load.buckets.rend() && bucket->closes == s; ++bucket) {
      const double time = bucket_seconds(device, topology, *bucket, scale);
      result.total += time;
      channel = (s == 0 ? channel : std::max(channel, 0.0)) + time * device.overlap;
    }
    clock = std::max(clock, channel) + seconds * load.segments[s].flops / flops;
  }
  if (!load.overlap) return {result.total, result.total};
  result.exposed = exposed_with(device, result.total, std::max(0.0, clock - seconds));
  return result;
}

// Keys that a query sees, on average over a sequence: itself and up to `window` before it.
double visible_keys(int64_t window, int64_t seq_len) {
  const auto t = static_cast<double>(seq_len);
  const double w = window < 0 ? t : std::min(static_cast<double>(window), t);
  return (w * (w + 1) / 2 + (t - w) * (w + 1)) / t;
}

}  // namespace

std::string_view shard_name(ShardLevel level) {
  constexpr std::string_view kNames[] = {"none", "optimizer", "gradients"};
  return kNames[static_cast<size_t>(level)];
}

double StepTime::hidden_share() const {
  if (communication() <= 0) return 0;
  return 1 - (reduce_exposed + gather_exposed) / communication();
}

std::vector<Segment> model_segments(const ModelSpec& spec, const ParamLayout& layout) {
  const auto layers = static_cast<size_t>(spec.n_layer);
  std::vector<Segment> segments(layers + 2);
  for (const ParamInfo& p : layout.params()) {
    size_t at = p.layer >= 0 ? static_cast<size_t>(p.layer) + 1 : 0;
    if (p.kind == ParamKind::kLmHead) at = layers + 1;
    segments[at].elements += static_cast<double>(p.size());
    const bool in_product = p.kind == ParamKind::kMatrix || p.kind == ParamKind::kLmHead ||
                            p.kind == ParamKind::kSmearGate;
    if (in_product) segments[at].flops += 6.0 * static_cast<double>(p.size());
  }
  for (size_t i = 0; i < layers; ++i) {
    // Two products forward, five backward.
    segments[i + 1].flops +=
        14.0 * static_cast<double>(spec.n_embd) * visible_keys(spec.windows[i], spec.sequence_len);
  }
  return segments;
}

double rank_peak_flops(const DeviceSpec& device, const Topology& topology, int64_t threads) {
  if (!device.shared_host) return device.peak_flops;
  const auto processors = static_cast<double>(device.processors);
  const auto wanted = static_cast<double>(threads * topology.ranks_per_host);
  return device.peak_flops / processors * static_cast<double>(threads) *
         std::min(1.0, processors / wanted);
}

std::vector<ExchangeBucket> exchange_buckets(const Ownership& ownership) {
  std::vector<ExchangeBucket> buckets;
  for (const Bucket& b : ownership.buckets()) {
    const int64_t largest = *std::max_element(b.counts.begin(), b.counts.end());
    buckets.push_back({static_cast<double>(b.size) * sizeof(float),
                       static_cast<double>(largest) * sizeof(float),
                       static_cast<size_t>(b.closes - kEmbeddingPart)});
  }
  return buckets;
}

StepTime predict_step(const DeviceSpec& device, const Topology& topology, const StepLoad& load) {
  const double peak = rank_peak_flops(device, topology, load.threads);
  const double sharing = device.shared_host ? static_cast<double>(topology.ranks_per_host) : 1.0;
  const double memory_rate = device.memory_bytes_per_s / sharing;
  const double scale = static_cast<double>(device.exchange_bytes) / sizeof(float);
  const double threading =
      device.shared_host ? std::pow(device.thread_share, std::log2(load.threads)) : 1.0;
  const double model = load.tokens * total_flops(load) / (peak * device.model_share * threading);

  StepTime t;
  t.backward = model * kBackwardShare;
  t.forward = model - t.backward;
  t.muon = load.muon_flops / (peak * device.optimizer_share);
  t.optimizer =
      t.muon + (load.adamw_elements * kAdamWBytes + load.norm_elements * kNormBytes) / memory_rate;
  if (topology.ranks() == 1) return t;

  const auto steps = static_cast<double>(load.micro_steps);
  const double passes = load.level == ShardLevel::kNone ? 2 : 1;
  Overlap reduce = beside_backward(device, topology, load, t.backward / steps, passes, scale);
  if (load.level == ShardLevel::kGradients) {
    reduce.total *= steps;
    reduce.exposed *= steps;
  }
  t.reduce = reduce.total;
  t.reduce_exposed = reduce.exposed;
  if (load.level == ShardLevel::kNone) return t;
  const Overlap gather = beside_forward(device, topology, load, t.forward / steps, t.muon, scale);
  t.gather = gather.total;
  t.gather_exposed = gather.exposed;
  return t;
}

}  // namespace heddle
