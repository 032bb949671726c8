#include "framework/optim/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "framework/core/json.h"

namespace heddle {
namespace {

double golden(const json::value& values, const char* name, int64_t step) {
  return values.at(name).as_array().at(static_cast<size_t>(step)).to_number<double>();
}

TEST(Schedules, GoldenTrajectory) {
  const json::value file =
      json::read_file(std::string(HEDDLE_SOURCE_DIR) + "/tests/golden/golden.json");
  const json::value& config = file.at("trajectory").at("config");
  const json::value& values = file.at("trajectory").at("values");
  OptimConfig c;
  c.warmup_steps = config.at("warmup").as_int64();
  c.warmdown_ratio = config.at("warmdown_ratio").to_number<double>();
  c.final_lr_frac = config.at("final_lr_frac").to_number<double>();
  c.weight_decay = config.at("weight_decay").to_number<double>();
  const int64_t n = config.at("steps").as_int64();
  for (int64_t it = 0; it < n; ++it) {
    EXPECT_NEAR(lr_multiplier(c, n, it), golden(values, "lr_multiplier", it), 1e-15) << it;
    EXPECT_NEAR(muon_momentum(c, n, it), golden(values, "muon_momentum", it), 1e-15) << it;
    EXPECT_NEAR(muon_weight_decay(c, n, it), golden(values, "muon_weight_decay", it), 1e-15) << it;
  }
}

struct Row {
  int64_t iteration;
  double want;
};

TEST(Schedules, DefaultRun) {
  const OptimConfig c;
  const int64_t n = 2000;  // warmdown over the last 1300
  for (const Row& r : {Row{0, 1.0 / 40}, Row{38, 39.0 / 40}, Row{39, 1.0}, Row{40, 1.0},
                       Row{700, 1.0}, Row{1350, 0.5 + 0.5 * 0.05}, Row{2000, 0.05}}) {
    EXPECT_NEAR(lr_multiplier(c, n, r.iteration), r.want, 1e-15) << r.iteration;
  }
  for (const Row& r : {Row{0, 0.85}, Row{200, 0.91}, Row{400, 0.97}, Row{699, 0.97}, Row{700, 0.97},
                       Row{1350, 0.935}, Row{2000, 0.90}}) {
    EXPECT_NEAR(muon_momentum(c, n, r.iteration), r.want, 1e-15) << r.iteration;
  }
  for (const Row& r : {Row{0, 0.28}, Row{1000, 0.14}, Row{2000, 0.0}}) {
    EXPECT_NEAR(muon_weight_decay(c, n, r.iteration), r.want, 1e-15) << r.iteration;
  }
}

TEST(Schedules, Cosine) {
  OptimConfig c;
  c.kind = "adamw";
  c.warmup_steps = 10;
  c.final_lr_frac = 0.1;
  for (const Row& r : {Row{0, 0.1}, Row{9, 1.0}, Row{10, 1.0}, Row{60, 0.55}, Row{110, 0.1},
                       Row{35, 0.1 + 0.45 * (1 + std::sqrt(0.5))}}) {
    EXPECT_NEAR(lr_multiplier(c, 110, r.iteration), r.want, 1e-12) << r.iteration;
  }
}

TEST(Schedules, AutoFollowsKindAndNamesOverrideIt) {
  OptimConfig muon, adamw;
  adamw.kind = "adamw";
  OptimConfig muon_cosine = muon, adamw_warmdown = adamw;
  muon_cosine.schedule = "cosine";
  adamw_warmdown.schedule = "warmdown";
  EXPECT_EQ(lr_multiplier(muon, 1000, 200), 1.0);
  EXPECT_EQ(lr_multiplier(adamw_warmdown, 1000, 200), 1.0);
  EXPECT_LT(lr_multiplier(adamw, 1000, 200), 1.0);
  EXPECT_EQ(lr_multiplier(muon_cosine, 1000, 200), lr_multiplier(adamw, 1000, 200));
}

TEST(Schedules, Edges) {
  OptimConfig c;
  c.warmup_steps = 0;
  EXPECT_EQ(lr_multiplier(c, 100, 0), 1.0);
  EXPECT_EQ(lr_multiplier(c, 0, 0), 1.0);
  c.warmdown_ratio = 0.0;
  EXPECT_EQ(lr_multiplier(c, 1000, 1000), 1.0);
  EXPECT_EQ(muon_momentum(c, 1000, 1000), 0.97);
  c.warmdown_ratio = 1.0;
  EXPECT_EQ(lr_multiplier(c, 100, 0), 1.0);
  EXPECT_NEAR(lr_multiplier(c, 100, 100), 0.05, 1e-15);
  EXPECT_EQ(lr_multiplier(c, 100, 150), lr_multiplier(c, 100, 100));
  EXPECT_NEAR(muon_weight_decay(c, 100, 150), 0.0, 1e-15);
  // Warmup longer than the run only rises.
  c.warmup_steps = 1000;
  EXPECT_EQ(lr_multiplier(c, 100, 99), 0.1);
  // round(0.5 * 5) is 2: half goes to the even neighbour, as in Python.
  c.warmup_steps = 0;
  c.warmdown_ratio = 0.5;
  EXPECT_EQ(lr_multiplier(c, 5, 3), 1.0);
  EXPECT_LT(lr_multiplier(c, 5, 4), 1.0);
  for (const char* kind : {"muon", "adamw"}) {
    c.kind = kind;
    for (int64_t n = 0; n < 30; ++n) {
      for (int64_t it = 0; it <= n; ++it) {
        const double lr = lr_multiplier(c, n, it), mu = muon_momentum(c, n, it);
        EXPECT_TRUE(lr >= c.final_lr_frac - 1e-15 && lr <= 1.0) << kind << n << "," << it;
        EXPECT_TRUE(mu >= c.muon_momentum_start && mu <= c.muon_momentum) << n << "," << it;
      }
    }
  }
}

TEST(Schedules, BatchScaling) {
  const BatchScaling reference = batch_scaling(1 << 19, 1000, 1000);
  EXPECT_EQ(reference.lr, 1.0);
  EXPECT_EQ(reference.weight_decay, 1.0);
  const BatchScaling scaled = batch_scaling(1 << 21, 8000, 1000);
  EXPECT_EQ(scaled.lr, 2.0);
  EXPECT_EQ(scaled.weight_decay, 0.25);
}

}  // namespace
}  // namespace heddle
