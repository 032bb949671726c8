// Paths of the fixture plugins, copies of them and environment variables for these tests.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "framework/config/config.h"
#include "framework/core/error.h"
#include "framework/device/device.h"
#include "tests/support/temp_folder.h"

namespace heddle::test {

inline std::string fixture(const std::string& name) {
  return std::string(HEDDLE_FIXTURES) + "/" + name + ".so";
}

inline AttentionConfig config_with(const std::string& backend, std::vector<std::string> paths) {
  AttentionConfig config;
  config.backend = backend;
  config.plugin_path = std::move(paths);
  return config;
}

// Copies a plugin; the folder is made when it is missing.
inline void copy_to(const std::string& from, const std::filesystem::path& to) {
  std::filesystem::create_directories(to.parent_path());
  std::filesystem::copy_file(from, to);
}

// Sets a variable until the end of the scope.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = getenv(name)) old_ = old;
    had_ = getenv(name) != nullptr;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

// What `run` throws, as one text; fails the test when it throws nothing.
template <class Run>
std::string error_of(Run&& run, ExitCode code = ExitCode::kPlugin) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no heddle::Error was thrown";
  return {};
}

// Host memory and nothing else: attention needs no Ops.
class PlainDevice : public Device {
 public:
  DeviceType type() const override { return type_; }
  int index() const override { return 0; }
  std::string description() const override { return "plain"; }
  DeviceBuffer allocate(size_t, const std::string&) override { return {}; }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  void synchronize() override {}
  void* stream() override { return nullptr; }
  Ops& ops() override { throw std::logic_error("no ops here"); }
  double measure_peak_flops() override { return 0.0; }

  DeviceType type_ = DeviceType::kCpu;
};

}  // namespace heddle::test
