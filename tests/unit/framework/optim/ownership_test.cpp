#include "framework/optim/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "framework/core/error.h"
#include "framework/optim/plan.h"
#include "framework/optim/sharded_step.h"

namespace heddle {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

ModelSpec spec(int64_t layers, int64_t width, bool switches = true) {
  ModelConfig c;
  c.n_layer = layers;
  c.n_head = 4;
  c.n_kv_head = 2;
  c.n_embd = width;
  c.sequence_len = 64;
  c.vocab_size = 260;
  c.smear = c.backout = c.value_embeds = c.resid_lambdas = c.x0_lambdas = switches;
  return resolve_model(c, 0);
}

OptimConfig optim(const char* kind) {
  OptimConfig config;
  config.kind = kind;
  return config;
}

struct Case {
  ModelSpec spec;
  OptimConfig optim;
  int world;
  int64_t bucket_bytes;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 3, 4, 5, 7, 40}) {  // 40: more ranks than matrices
    for (const char* kind : {"muon", "adamw"}) {
      for (const int64_t bucket : {int64_t{0}, kMiB, 64 * kMiB}) {
        all.push_back({spec(4, 64), optim(kind), world, bucket});
        all.push_back({spec(3, 48, false), optim(kind), world, bucket});
      }
    }
  }
  return all;
}

TEST(Ownership, BucketsTileTheFlatBufferInBackwardOrder) {
  for (const Case& c : cases()) {
    const Ownership own(c.spec, c.optim, c.world, c.bucket_bytes);
    int64_t at = 0;
    for (size_t b = 0; b < own.buckets().size(); ++b) {
      const Bucket& bucket = own.buckets()[b];
      EXPECT_EQ(bucket.begin, at);
      EXPECT_EQ(bucket.counts.size(), static_cast<size_t>(c.world));
      EXPECT_EQ(std::accumulate(bucket.counts.begin(), bucket.counts.end(), int64_t{0}),
                bucket.size);
      for (const int64_t count : bucket.counts) EXPECT_EQ(count % 16, 0);
      EXPECT_GE(bucket.opens, bucket.closes);
      if (b > 0) {
        EXPECT_LE(bucket.closes, own.buckets()[b - 1].closes);
      }
      at += bucket.size;
    }
    EXPECT_EQ(at, own.layout().total());
  }
}

TEST(Ownership, EveryElementBelongsToOneRankWhichHoldsItInItsShard) {
  for (const Case& c : cases()) {
    const Ownership own(c.spec, c.optim, c.world, c.bucket_bytes);
    std::vector<int> owners(static_cast<size_t>(own.layout().total()), -1);
    std::vector<std::vector<bool>> shards(static_cast<size_t>(c.world));
    for (int r = 0; r < c.world; ++r) shards[r].resize(static_cast<size_t>(own.elements(r)));
    int64_t twice = 0;
    for (const Piece& p : own.pieces()) {
      const int64_t flat = own.layout().params()[p.param].offset + p.begin;
      for (int64_t i = 0; i < p.count; ++i) {
        twice += owners[flat + i] != -1;
        owners[flat + i] = p.rank;
      }
      const int64_t first = own.shard_offset(p.rank, flat);
      EXPECT_EQ(own.shard_offset(p.rank, flat + p.count - 1), first + p.count - 1);
      for (int64_t i = 0; i < p.count; ++i) {
        twice += shards[p.rank].at(first + i);
        shards[p.rank][first + i] = true;
      }
    }
    EXPECT_EQ(twice, 0);
    int64_t without = 0;
    for (const ParamInfo& p : own.layout().params()) {
      without += std::count(owners.begin() + p.offset, owners.begin() + p.offset + p.size(), -1);
    }
    EXPECT_EQ(without, 0);
    // The owner's range of a bucket is where its elements lie.
    for (size_t b = 0; b < own.buckets().size(); ++b) {
      for (int r = 0; r < c.world; ++r) {
        for (int64_t i = 0; i < own.buckets()[b].counts[r]; ++i) {
          const int owner = owners[own.own_begin(r, b) + i];
          EXPECT_TRUE(owner == r || owner == -1) << owner << " in the range of " << r;
        }
      }
    }
  }
}

TEST(Ownership, ProjectionsOfALayerStayAdjacent) {
  for (const Case& c : cases()) {
    const Ownership own(c.spec, c.optim, c.world, c.bucket_bytes);
    for (int64_t i = 0; i < c.spec.n_layer; ++i) {
      const std::string prefix = "transformer.h." + std::to_string(i) + ".attn.";
      const ParamInfo &q = own.layout().at(prefix + "c_q.weight"),
                      &k = own.layout().at(prefix + "c_k.weight"),
                      &v = own.layout().at(prefix + "c_v.weight");
      EXPECT_EQ(k.offset, q.offset + q.size());
      EXPECT_EQ(v.offset, k.offset + k.size());
    }
  }
}

TEST(Ownership, OneRankKeepsTheNaturalLayout) {
  const Ownership own(spec(4, 64), OptimConfig{}, 1, kMiB);
  const ParamLayout natural(spec(4, 64));
  for (size_t i = 0; i < natural.params().size(); ++i) {
    EXPECT_EQ(own.layout().params()[i].offset, natural.params()[i].offset);
  }
  EXPECT_EQ(own.layout().total(), natural.total());
}

// The norm is added up the same way by any number of ranks.
TEST(Ownership, NormPiecesDoNotDependOnTheRanks) {
  const auto pieces = [](int world) {
    std::vector<std::tuple<int, int64_t, int64_t>> list;
    const Ownership own(spec(4, 64), OptimConfig{}, world, kMiB);
    for (const Piece& p : own.norm_pieces()) list.emplace_back(p.param, p.begin, p.count);
    return list;
  };
  for (const int world : {2, 3, 5, 40}) EXPECT_EQ(pieces(world), pieces(1)) << world;
}

TEST(Ownership, StateIsEvenWhereMatricesAllowIt) {
  const ModelSpec model = spec(12, 192);
  for (const int world : {2, 3, 4}) {
    const Ownership own(model, OptimConfig{}, world, 4 * kMiB);
    const int64_t all =
        plan_optimizer(OptimConfig{}, own, ShardLevel::kNone, 0, 2048).state_bytes();
    for (int r = 0; r < world; ++r) {
      const OptimPlan plan = plan_optimizer(OptimConfig{}, own, ShardLevel::kOptimizer, r, 2048);
      EXPECT_NEAR(static_cast<double>(plan.state_bytes()), static_cast<double>(all) / world,
                  0.05 * static_cast<double>(all) / world)
          << "rank " << r << " of " << world;
    }
  }
}

TEST(Ownership, PlansOfAllRanksTogetherAreTheWholePlan) {
  for (const char* kind : {"muon", "adamw"}) {
    const Ownership own(spec(4, 64), optim(kind), 5, 0);
    const OptimPlan whole = plan_optimizer(optim(kind), own, ShardLevel::kNone, 0, 2048);
    size_t matrices = 0;
    int64_t elements = 0, whole_elements = 0;
    for (int r = 0; r < 5; ++r) {
      const OptimPlan part = plan_optimizer(optim(kind), own, ShardLevel::kGradients, r, 2048);
      matrices += part.muon.size();
      for (const AdamWTask& t : part.adamw) {
        elements += t.count;
        EXPECT_LE(t.grad + t.count, own.elements(r));
      }
    }
    for (const AdamWTask& t : whole.adamw) whole_elements += t.count;
    EXPECT_EQ(matrices, whole.muon.size());
    EXPECT_EQ(elements, whole_elements);
  }
}

TEST(Ownership, BytesOfAllRanks) {
  const Ownership own(spec(4, 64), OptimConfig{}, 3, kMiB);
  const int64_t all = own.layout().total(), norms = static_cast<int64_t>(own.norm_pieces().size());
  const auto total = [&](const ShardOptions& options) {
    int64_t bytes = 0;
    for (int r = 0; r < 3; ++r) bytes += step_bytes(options, own, r);
    return bytes;
  };
  const int64_t small = 8 * 2 * (3 * 3 + norms);
  EXPECT_EQ(total({.level = ShardLevel::kNone}), 4 * (2 * all + 2 * all) + small);
  EXPECT_EQ(total({.level = ShardLevel::kOptimizer, .micro_steps = 3}),
            4 * (2 * all + 2 * all) + small);
  EXPECT_EQ(total({.level = ShardLevel::kGradients, .micro_steps = 3}),
            4 * (3 * 2 * all + 2 * all) + small);
  EXPECT_EQ(total({.level = ShardLevel::kOptimizer, .reproducible = true}),
            16 * 2 * all + 4 * 2 * all + small);
  EXPECT_EQ(step_bytes({.level = ShardLevel::kOptimizer}, Ownership(spec(4, 64), {}, 1, kMiB), 0),
            0);
}

TEST(Ownership, GradientMemoryFallsWithTheRanks) {
  const ModelSpec model = spec(12, 192);
  const auto bytes = [&](ShardLevel level, int world) {
    size_t total = 0;
    const Ownership own(model, OptimConfig{}, world, kMiB);
    for (const MemoryItem& item : plan_gradient_memory({.level = level}, own, 0)) {
      total += item.bytes;
    }
    return static_cast<double>(total);
  };
  EXPECT_LT(bytes(ShardLevel::kGradients, 4), 0.6 * bytes(ShardLevel::kOptimizer, 4));
  EXPECT_LT(bytes(ShardLevel::kGradients, 8), 0.45 * bytes(ShardLevel::kOptimizer, 8));
}

}  // namespace
}  // namespace heddle
