#include "framework/report/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "framework/config/dump.h"
#include "framework/core/error.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/framework/report/fixtures.h"

namespace heddle::test {
namespace {

DeviceSpec host() {
  DeviceSpec d = round_device();
  d.shared_host = true;
  d.processors = 2;
  d.ring = false;
  d.overlap = 0;
  d.local = {2e9, 1e-5};
  return d;
}

PlanRequest on(const DeviceSpec& device, int64_t ranks, int64_t threads) {
  PlanRequest r = request(1, ranks);
  r.device = device;
  r.config.train.threads = threads;
  return r;
}

// A run folder in which every step took what `truth` predicts; the first step is slow.
std::string write_run(const test::MemoryFolder& folder, const DeviceSpec& truth, int64_t ranks,
                      int64_t threads) {
  const PlanRequest r = on(truth, ranks, threads);
  const StepTime t = make_plan(r).level(ShardLevel::kOptimizer).time;
  std::ofstream(folder / "config.yaml") << dump_config(r.config);
  std::ofstream out(folder / "metrics.jsonl");
  for (int step = 1; step <= 6; ++step) {
    out << json::serialize(
               json::object{{"step", step},
                            {"train/dt", step == 1 ? 100.0 : t.total()},
                            {"train/comm_ms", (t.reduce_exposed + t.gather_exposed) * 1e3},
                            {"train/optim_ms", t.optimizer * 1e3},
                            {"run/ranks", ranks},
                            {"run/ranks_per_host", ranks},
                            {"run/threads", threads},
                            {"run/processors", 2}})
        << "\n";
  }
  out << R"({"step":6,"val/loss":1.0})"
      << "\n"
      << R"({"step":7,"train)";  // cut short
  return folder / "metrics.jsonl";
}

TEST(Calibration, FindsTheRatesThatARunWasMadeWith) {
  DeviceSpec truth = host();
  truth.model_share = 0.31;
  truth.optimizer_share = 0.12;
  truth.memory_bytes_per_s = 1e12 * 0.12 / 0.5;
  truth.local = {2e9 / 3, 3e-5};
  const test::MemoryFolder folder;
  const MeasuredRun run = read_measured_run(write_run(folder, truth, 2, 1));
  EXPECT_EQ(run.steps, 5);
  EXPECT_EQ(run.topology.ranks(), 2);
  const DeviceSpec found = calibrate(host(), run, on(host(), 2, 1));
  EXPECT_NEAR(found.model_share, 0.31, 1e-9);
  EXPECT_NEAR(found.optimizer_share, 0.12, 1e-9);
  EXPECT_NEAR(found.local.bytes_per_s, 2e9 / 3, 1);
  for (const int64_t ranks : {1, 2, 4}) {
    const auto seconds = [&](const DeviceSpec& d) {
      return make_plan(on(d, ranks, 0)).level(ShardLevel::kNone).time.total();
    };
    EXPECT_NEAR(seconds(found), seconds(truth), 1e-9 * seconds(truth)) << ranks;
  }
}

TEST(Calibration, ARankAloneSaysNothingOfLinks) {
  const test::MemoryFolder folder;
  const MeasuredRun run = read_measured_run(write_run(folder, host(), 1, 2));
  const DeviceSpec found = calibrate(host(), run, on(host(), 1, 2));
  EXPECT_EQ(found.local.bytes_per_s, host().local.bytes_per_s);
  EXPECT_NEAR(found.model_share, host().model_share, 1e-9);
}

TEST(Calibration, RefusesWhatItCannotUse) {
  const test::MemoryFolder folder;
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      read_measured_run(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kEnvironment);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal(folder / "nowhere.jsonl"), ::testing::HasSubstr("cannot be read"));
  std::ofstream(folder / "short.jsonl") << "";
  EXPECT_THAT(refusal(folder / "short.jsonl"), ::testing::HasSubstr("has 0 measured steps"));
  std::ofstream(folder / "old.jsonl") << R"({"step":1,"train/dt":0.5,"train/comm_ms":1})"
                                      << "\n";
  EXPECT_THAT(refusal(folder / "old.jsonl"), ::testing::HasSubstr("train/optim_ms"));
}

}  // namespace
}  // namespace heddle::test
