#include "framework/report/step_model.h"

#include <gtest/gtest.h>

#include "tests/unit/framework/report/fixtures.h"

namespace heddle::test {
namespace {

// Two segments of 1e9 and 3e9 FLOPs a token with 250e6 parameters (1 GB) each; a million tokens
// at 0.5 TFLOP/s: 8000 s, of which 2000 belong to the first segment.
StepLoad two_segments() {
  StepLoad load;
  load.segments = {{250e6, 1e9}, {250e6, 3e9}};
  load.buckets = {{1e9, 0.5e9, 1}, {1e9, 0.5e9, 0}};
  load.tokens = 1e6;
  return load;
}

TEST(StepModel, SegmentsAddUpToTheModel) {
  Config c = small_config();
  c.model.window_pattern.letters = "SSL";
  c.model.n_kv_head = 2;
  const ModelSpec spec = resolve_model(c.model, 0);
  const ParamLayout layout(spec);
  const std::vector<Segment> segments = model_segments(spec, layout);
  ASSERT_EQ(segments.size(), 6u);
  double elements = 0, flops = 0;
  for (const Segment& s : segments) {
    elements += s.elements;
    flops += s.flops;
  }
  EXPECT_EQ(elements, static_cast<double>(count_params(layout).total));
  // nanochat counts 12 FLOPs for each key of a window, we 14 for each pair that there is.
  const int64_t t = spec.sequence_len;
  double want = flops_per_token(spec);
  for (const int64_t window : spec.windows) {
    const int64_t w = window < 0 ? t : std::min(window, t);
    int64_t pairs = 0;
    for (int64_t i = 0; i < t; ++i) pairs += std::min(i, w) + 1;
    want += static_cast<double>(spec.n_embd) *
            (14.0 * static_cast<double>(pairs) / static_cast<double>(t) - 12.0 * w);
  }
  EXPECT_NEAR(flops, want, 1e-6 * want);
}

TEST(StepModel, ComputationOfOneRank) {
  StepLoad load = two_segments();
  load.muon_flops = 5e12;       // at 0.5 TFLOP/s: 10 s
  load.adamw_elements = 1e12;   // 28 bytes each at 1 TB/s: 28 s
  load.norm_elements = 0.5e12;  // 4 bytes: 2 s
  const StepTime t = predict_step(round_device(), {1, 1}, load);
  EXPECT_NEAR(t.forward, 8000.0 / 3, 1e-9);
  EXPECT_NEAR(t.backward, 16000.0 / 3, 1e-9);
  EXPECT_NEAR(t.optimizer, 40, 1e-9);
  EXPECT_EQ(t.communication(), 0);
  EXPECT_EQ(t.hidden_share(), 0);
  EXPECT_NEAR(t.total(), 8040, 1e-9);
}

TEST(StepModel, OnlyTheLastBucketIsExposedWhenComputingIsLong) {
  StepLoad load = two_segments();
  load.level = ShardLevel::kOptimizer;
  const StepTime t = predict_step(round_device(), {1, 2}, load);
  // Buckets of 1 GB on two ranks: half of it at 1 GB/s. The second segment's goes out while the
  // first is still computed; the first segment's when backward is over.
  EXPECT_NEAR(t.reduce, 1.0, 1e-9);
  EXPECT_NEAR(t.reduce_exposed, 0.5, 1e-9);
  // Forward waits for the first bucket, the second arrives in time.
  EXPECT_NEAR(t.gather, 1.0, 1e-9);
  EXPECT_NEAR(t.gather_exposed, 0.5, 1e-9);
  EXPECT_NEAR(t.hidden_share(), 0.5, 1e-9);
}

TEST(StepModel, CommunicationLongerThanComputingShows) {
  StepLoad load = two_segments();
  load.level = ShardLevel::kOptimizer;
  load.tokens = 0.75e3;  // 6 s: backward 3 s then 1 s; forward 0.5 s then 1.5 s
  DeviceSpec slow = round_device();
  slow.local.bytes_per_s = 0.05e9;  // a bucket takes 10 s
  const StepTime t = predict_step(slow, {1, 2}, load);
  // Sent from 3 s to 13 s and to 23 s; backward ends at 4 s.
  EXPECT_NEAR(t.reduce_exposed, 19, 1e-9);
  // Arrived at 10 s and 20 s; computed until 20 + 1.5 s instead of 2 s.
  EXPECT_NEAR(t.gather_exposed, 19.5, 1e-9);
}

TEST(StepModel, WithoutOverlapEverythingShows) {
  StepLoad load = two_segments();
  load.overlap = false;
  for (const ShardLevel level : kShardLevels) {
    load.level = level;
    const StepTime t = predict_step(round_device(), {1, 2}, load);
    EXPECT_NEAR(t.reduce_exposed + t.gather_exposed, 2.0, 1e-9) << shard_name(level);
    EXPECT_NEAR(t.communication(), 2.0, 1e-9) << shard_name(level);
    EXPECT_NEAR(t.hidden_share(), 0, 1e-9);
  }
}

TEST(StepModel, ATransferByTheCoresThatComputeIsNotHidden) {
  StepLoad load = two_segments();
  load.level = ShardLevel::kOptimizer;
  DeviceSpec d = round_device();
  d.overlap = 0;
  const StepTime t = predict_step(d, {1, 2}, load);
  EXPECT_NEAR(t.reduce_exposed, t.reduce, 1e-9);
  EXPECT_NEAR(t.gather_exposed, t.gather, 1e-9);
}

TEST(StepModel, TheFirstParametersTravelWhileMuonWorks) {
  StepLoad load = two_segments();
  load.level = ShardLevel::kOptimizer;
  load.muon_flops = 0.15e12;  // 0.3 s of the 0.5 s that the first bucket takes
  const StepTime t = predict_step(round_device(), {1, 2}, load);
  EXPECT_NEAR(t.muon, 0.3, 1e-9);
  EXPECT_NEAR(t.gather_exposed, 0.2, 1e-9);
}

TEST(StepModel, GradientsAreReducedEveryMicroStep) {
  StepLoad load = two_segments();
  load.micro_steps = 3;
  load.level = ShardLevel::kGradients;
  const StepTime t = predict_step(round_device(), {1, 2}, load);
  EXPECT_NEAR(t.reduce, 3.0, 1e-9);
  EXPECT_NEAR(t.reduce_exposed, 1.5, 1e-9);
  EXPECT_NEAR(t.gather, 1.0, 1e-9);
}

TEST(StepModel, BucketsCloseWithTheSegmentThatFillsThem) {
  Config c = small_config();
  const ModelSpec spec = resolve_model(c.model, 0);
  const Ownership ownership(spec, c.optim, 3, 1);  // a layer a bucket
  const std::vector<ExchangeBucket> buckets = exchange_buckets(ownership);
  double bytes = 0;
  size_t last = static_cast<size_t>(spec.n_layer) + 1;
  EXPECT_EQ(buckets.front().closes, last);  // lm_head
  EXPECT_EQ(buckets.back().closes, 0u);     // wte
  for (const ExchangeBucket& b : buckets) {
    EXPECT_LE(b.closes, last);
    last = b.closes;
    bytes += b.bytes;
  }
  EXPECT_EQ(bytes, 4.0 * static_cast<double>(ownership.layout().total()));
}

TEST(StepModel, RanksOfASharedHostDivideIt) {
  DeviceSpec host = round_device();
  host.shared_host = true;
  host.processors = 4;
  EXPECT_DOUBLE_EQ(rank_peak_flops(host, {1, 1}, 4), 1e12);
  EXPECT_DOUBLE_EQ(rank_peak_flops(host, {1, 1}, 1), 0.25e12);
  EXPECT_DOUBLE_EQ(rank_peak_flops(host, {1, 4}, 1), 0.25e12);
  EXPECT_DOUBLE_EQ(rank_peak_flops(host, {1, 8}, 1), 0.125e12);  // two ranks a processor
  EXPECT_DOUBLE_EQ(rank_peak_flops(round_device(), {1, 8}, 1), 1e12);
}

TEST(StepModel, ThreadsOfARankLoseSomeOfTheirSpeed) {
  DeviceSpec host = round_device();
  host.shared_host = true;
  host.processors = 4;
  StepLoad load = two_segments();
  load.threads = 4;
  const double whole = predict_step(host, {1, 1}, load).backward;
  host.thread_share = 0.9;
  EXPECT_NEAR(predict_step(host, {1, 1}, load).backward, whole / 0.81, 1e-9 * whole);
  load.threads = 1;
  EXPECT_NEAR(predict_step(host, {1, 1}, load).backward, 4 * whole, 1e-9 * whole);
}

}  // namespace
}  // namespace heddle::test
