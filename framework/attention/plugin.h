// A plugin library in this process, and its context on a device. Both are what probes, the host,
// `heddle plugin check` and tests stand on; choosing among plugins is elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plugins/abi/heddle_attention.h"

namespace heddle {

// Told what the plugin is about to run ("its entry function"), so that a crash has a place.
using PluginStage = std::function<void(const std::string&)>;

// Loaded, negotiated, never unloaded.
class PluginLibrary {
 public:
  // Loads `path` (absolute) and calls its entry function, once per process however often it is
  // asked. Throws heddle::Error (plugin) with a predicate about the file: not a library, unresolved
  // symbol, missing entry, refused table, changed floating-point mode. A failure is remembered.
  static PluginLibrary& load(const std::string& path, const PluginStage& stage = {});

  const std::string& path() const { return path_; }
  const heddle_attention_plugin& table() const { return *table_; }
  std::string name() const { return table_->name; }
  std::string version() const;
  std::string description() const;
  const heddle_host& host() const { return host_; }
  // crc32c of the file.
  uint32_t checksum() const { return checksum_; }

  PluginLibrary(const PluginLibrary&) = delete;
  PluginLibrary& operator=(const PluginLibrary&) = delete;

 private:
  PluginLibrary(std::string path, const PluginStage& stage);
  void open(const PluginStage& stage);

  std::string path_;
  std::string label_;  // of log lines
  heddle_host host_{};
  const heddle_attention_plugin* table_ = nullptr;
  uint32_t checksum_ = 0;
};

// What query() said, in words.
struct QueryAnswer {
  bool supported = false;
  std::string kernel;
  uint64_t workspace_bytes = 0;
  uint64_t workspace_align = 64;
  double est_time_us = 0.0;  // 0: unknown
  std::string refusal;       // of a no: "head_dim=96, needs in{64,128}; hint" joined by " / "
};

// A plugin's context on one device. Thread rules are the ABI's.
class PluginContext {
 public:
  // Throws heddle::Error (plugin) with the plugin's text when it refuses the device.
  PluginContext(PluginLibrary& library, const heddle_device& device);
  ~PluginContext();
  PluginContext(const PluginContext&) = delete;
  PluginContext& operator=(const PluginContext&) = delete;

  PluginLibrary& library() const { return *library_; }
  bool has(uint32_t property) const { return (library_->table().properties & property) != 0; }

  // Asks the plugin, after refusing on its behalf what it cannot understand (feature bits) or does
  // not offer (no such function). Throws heddle::Error (plugin) when the answer breaks the header.
  QueryAnswer query(const heddle_attention_problem& problem) const;
  // query(), and when the plugin refuses a problem with HEDDLE_FLAG_DETERMINISTIC, again without:
  // then the flag is gone from `problem` if that was accepted.
  QueryAnswer query_preferring_determinism(heddle_attention_problem& problem) const;

  // Calls the function of problem.op and returns its status. Allocates nothing.
  uint32_t run(const heddle_attention_problem& problem, const heddle_attention_call& call) const {
    const heddle_attention_plugin& t = library_->table();
    const auto function = problem.op == HEDDLE_OP_FORWARD    ? t.forward
                          : problem.op == HEDDLE_OP_BACKWARD ? t.backward
                                                             : t.decode;
    return function(ctx_, &problem, &call);
  }

 private:
  PluginLibrary* library_;
  heddle_attention_ctx* ctx_ = nullptr;
};

// The device record of this process's processors.
heddle_device cpu_plugin_device();

}  // namespace heddle
