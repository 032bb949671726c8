// Paths of the fixture plugins, temporary folders and environment variables for these tests.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "framework/config/config.h"
#include "framework/core/error.h"
#include "framework/device/device.h"

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

// A folder of this test's own, gone at its end.
class TempFolder {
 public:
  explicit TempFolder(const std::string& name = "plugins") {
    std::string pattern = ::testing::TempDir() + "heddle_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    root_ = pattern;
    path_ = root_ / name;
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ec;
    std::filesystem::remove_all(root_, ec);
  }
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  void write(const std::string& name, const std::string& contents) const {
    std::ofstream(file(name), std::ios::binary) << contents;
  }
  void copy(const std::string& from, const std::string& name) const {
    std::filesystem::copy_file(from, file(name));
  }

 private:
  std::filesystem::path root_, path_;
};

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
