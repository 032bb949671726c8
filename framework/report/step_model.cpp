#include "framework/report/step_model.h"

#include <algorithm>

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

std::vector<double> bucket_sizes(double bytes, double bucket) {
  std::vector<double> sizes;
  for (; bytes > bucket; bytes -= bucket) sizes.push_back(bucket);
  sizes.push_back(bytes);
  return sizes;
}

// Gradients appear from the last segment to the first; each full bucket is sent at once, one after
// the other. `seconds` is the time of backward and `passes` the collectives a bucket goes through.
Overlap beside_backward(const DeviceSpec& device, const Topology& topology, const StepLoad& load,
                        double seconds, double passes, double scale) {
  double flops = 0;
  for (const Segment& s : load.segments) flops += s.flops;
  double clock = 0, channel = 0, waiting = 0;
  Overlap result;
  const auto send = [&](double bytes) {
    const double time = passes * exchange_seconds(device, topology, bytes * scale);
    result.total += time;
    channel = std::max(channel, load.overlap ? clock : seconds) + time * device.overlap;
  };
  for (auto s = load.segments.rbegin(); s != load.segments.rend(); ++s) {
    clock += seconds * s->flops / flops;
    waiting += s->elements * sizeof(float);
    for (; waiting >= load.bucket_bytes; waiting -= load.bucket_bytes) send(load.bucket_bytes);
  }
  if (waiting > 0) send(waiting);
  if (!load.overlap) return {result.total, result.total};
  result.exposed = exposed_with(device, result.total, std::max(0.0, channel - seconds));
  return result;
}

// Parameters arrive bucket by bucket while forward runs; a segment waits for its own.
Overlap beside_forward(const DeviceSpec& device, const Topology& topology, const StepLoad& load,
                       double seconds, double scale) {
  double flops = 0;
  for (const Segment& s : load.segments) flops += s.flops;
  Overlap result;
  double clock = 0, channel = 0, wanted = 0, arrived = 0;
  double left = load.exchange_elements * sizeof(float);
  for (const Segment& s : load.segments) {
    wanted += s.elements * sizeof(float);
    for (; arrived < wanted && left > 0;) {
      const double bytes = std::min(load.bucket_bytes, left);
      const double time = exchange_seconds(device, topology, bytes * scale);
      result.total += time;
      channel += time * device.overlap;
      arrived += bytes;
      left -= bytes;
    }
    clock = std::max(clock, channel) + seconds * s.flops / flops;
  }
  if (!load.overlap) return {result.total, result.total};
  result.exposed = exposed_with(device, result.total, std::max(0.0, clock - seconds));
  return result;
}

double sequential(const DeviceSpec& device, const Topology& topology, const StepLoad& load,
                  double scale) {
  double total = 0;
  for (const double b : bucket_sizes(load.exchange_elements * sizeof(float), load.bucket_bytes)) {
    total += exchange_seconds(device, topology, b * scale);
  }
  return total;
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
    const int64_t w = spec.windows[i];
    const int64_t visible = w < 0 ? spec.sequence_len : std::min(w, spec.sequence_len);
    segments[i + 1].flops += 12.0 * static_cast<double>(spec.n_embd) * static_cast<double>(visible);
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

double step_sent_bytes(const DeviceSpec& device, const Topology& topology, const StepLoad& load) {
  const double once =
      sent_bytes(topology, load.exchange_elements * static_cast<double>(device.exchange_bytes));
  const int64_t reduces = load.level == ShardLevel::kGradients ? load.micro_steps : 1;
  return once * static_cast<double>(reduces + 1);
}

StepTime predict_step(const DeviceSpec& device, const Topology& topology, const StepLoad& load) {
  double flops = 0;
  for (const Segment& s : load.segments) flops += s.flops;
  const double peak = rank_peak_flops(device, topology, load.threads);
  const double sharing = device.shared_host ? static_cast<double>(topology.ranks_per_host) : 1.0;
  const double memory_rate = device.memory_bytes_per_s / sharing;
  const double scale = static_cast<double>(device.exchange_bytes) / sizeof(float);
  const double model = load.tokens * flops / (peak * device.model_share);

  StepTime t;
  t.backward = model * kBackwardShare;
  t.forward = model - t.backward;
  t.optimizer = load.muon_flops / (peak * device.optimizer_share) +
                (load.adamw_elements * kAdamWBytes + load.norm_elements * kNormBytes) / memory_rate;
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
  const Overlap gather = load.overlap
                             ? beside_forward(device, topology, load, t.forward / steps, scale)
                             : Overlap{sequential(device, topology, load, scale),
                                       sequential(device, topology, load, scale)};
  t.gather = gather.total;
  t.gather_exposed = gather.exposed;
  return t;
}

}  // namespace heddle
