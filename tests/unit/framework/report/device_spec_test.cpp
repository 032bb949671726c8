#include "framework/report/device_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/config/load.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

TEST(DeviceSpec, ConfigurationKnowsEveryDevice) {
  for (const std::string& name : device_names()) {
    EXPECT_EQ(parse_config("plan: {device: " + name + "}", "run.yaml").plan.device, name);
  }
  EXPECT_THROW(parse_config("plan: {device: abacus}", "run.yaml"), Error);
}

TEST(DeviceSpec, EveryFigureIsThere) {
  for (const std::string& name : device_names()) {
    const DeviceSpec d = find_device(name);
    EXPECT_EQ(d.name, name);
    EXPECT_FALSE(d.source.empty());
    for (const double v :
         {d.peak_flops, d.model_share, d.optimizer_share, d.memory_bytes, d.memory_bytes_per_s,
          d.local.bytes_per_s, d.local.latency_s, d.remote.bytes_per_s, d.remote.latency_s}) {
      EXPECT_GT(v, 0) << name;
    }
  }
}

TEST(DeviceSpec, FiguresCanBeReplaced) {
  DeviceSpec d = find_device("h100");
  for (const std::string& name : device_value_names()) {
    if (name != "exchange_bytes") set_device_value(d, name + "=0.25");
  }
  set_device_value(d, "exchange_bytes=2");
  for (const double v : {d.peak_flops, d.model_share, d.optimizer_share, d.memory_bytes,
                         d.memory_bytes_per_s, d.overlap, d.local.bytes_per_s, d.local.latency_s,
                         d.remote.bytes_per_s, d.remote.latency_s}) {
    EXPECT_EQ(v, 0.25);
  }
  EXPECT_EQ(d.exchange_bytes, 2);
}

TEST(DeviceSpec, RefusalsNameTheFigure) {
  DeviceSpec d = find_device("h100");
  for (const char* wrong :
       {"speed=3", "peak_flops", "peak_flops=", "peak_flops=fast", "peak_flops=-1", "peak_flops=0",
        "peak_flops=nan", "peak_flops=1e3x", "exchange_bytes=3"}) {
    try {
      set_device_value(d, wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kUsage) << wrong;
      const std::string key = std::string(wrong).substr(0, std::string(wrong).find('='));
      EXPECT_THAT(e.what(), ::testing::HasSubstr(key));
    }
  }
  EXPECT_EQ(d.peak_flops, find_device("h100").peak_flops);
  try {
    find_device("abacus");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                ::testing::AllOf(::testing::HasSubstr("abacus"), ::testing::HasSubstr("h100")));
  }
}

}  // namespace
}  // namespace heddle
