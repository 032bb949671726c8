// The parent's side of a probe: start the program, wait, put what happened into words.
#include "framework/attention/probe.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include "framework/attention/child_process.h"
#include "framework/attention/discovery.h"
#include "framework/attention/names.h"
#include "framework/attention/probe_report.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultTimeoutMs = 10000;

std::string probe_program() {
  if (const char* named = std::getenv("HEDDLE_PROBE_EXE"); named != nullptr) return named;
  const fs::path self = fs::read_symlink("/proc/self/exe");
  if (self.filename() == "heddle") return self.string();
  const fs::path bin = self.parent_path().parent_path() / "bin";
  std::error_code ec;
  for (const char* name : {"heddle_plugin_probe", "heddle"}) {
    if (fs::exists(bin / name, ec)) return (bin / name).string();
  }
  throw environment_error("plugin",
                          fmt::format("cannot find the program that probes plugins: no "
                                      "heddle_plugin_probe and no heddle in {}",
                                      bin.string()),
                          "set HEDDLE_PROBE_EXE to the path of the heddle executable");
}

std::chrono::milliseconds probe_deadline() {
  const char* text = std::getenv("HEDDLE_PROBE_TIMEOUT_MS");
  if (text == nullptr) return std::chrono::milliseconds(kDefaultTimeoutMs);
  int64_t ms = 0;
  const char* end = text + std::strlen(text);
  if (const auto r = std::from_chars(text, end, ms);
      r.ec != std::errc{} || r.ptr != end || ms <= 0) {
    throw environment_error(
        "plugin",
        fmt::format("HEDDLE_PROBE_TIMEOUT_MS is '{}', expected milliseconds above 0", text),
        "set it to 10000 or unset it");
  }
  return std::chrono::milliseconds(ms);
}

// The child's lines: the last progress line, and the report when there is one.
struct Lines {
  std::string stage;
  std::string report;
};

Lines split_lines(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.starts_with("# ")) {
      lines.stage = line.substr(2);
    } else if (end != std::string_view::npos) {
      lines.report = line;
    }
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return lines;
}

std::string printed(const std::string& output) {
  const std::string text = clean_text(output, 300);
  return text.empty() ? "" : "; it printed: " + text;
}

PluginReport refuse(std::string refusal, std::string remedy) {
  PluginReport report;
  report.refusal = std::move(refusal);
  report.remedy = std::move(remedy);
  return report;
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000.0);
}

PluginReport judge(const ChildResult& child, const std::string& program,
                   std::chrono::milliseconds deadline) {
  const Lines lines = split_lines(child.report);
  if (lines.stage.empty() && !child.timed_out) {
    throw environment_error(
        "plugin",
        fmt::format("{} did not answer as a plugin probe (exit status {}, "
                    "signal {}){}",
                    program, child.exit_status, child.signal, printed(child.output)),
        "set HEDDLE_PROBE_EXE to the path of the heddle executable");
  }
  const std::string where = !lines.report.empty() ? "the end of the process"
                            : lines.stage.empty() ? "the start of the probe"
                                                  : lines.stage;
  constexpr const char* kRemedy = "correct or remove the plugin";
  if (child.timed_out) {
    return refuse(fmt::format("gave no answer within {}: it hung in {}{}", seconds(deadline), where,
                              printed(child.output)),
                  kRemedy);
  }
  if (child.signal != 0) {
    return refuse(fmt::format("crashed with signal {} ({}) in {}{}", child.signal,
                              strsignal(child.signal), where, printed(child.output)),
                  kRemedy);
  }
  if (lines.report.empty() || child.exit_status != 0) {
    return refuse(fmt::format("ended its process with exit status {} in {}{}", child.exit_status,
                              where, printed(child.output)),
                  "a plugin must not call exit(); correct or remove it");
  }
  return parse_report(lines.report);
}

// Names one state of a file, so that a rebuilt plugin is probed anew.
std::string file_state(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return path;
  return fmt::format("{}|{}|{}|{}.{}", path, st.st_ino, st.st_size, st.st_mtim.tv_sec,
                     st.st_mtim.tv_nsec);
}

}  // namespace

PluginReport probe_plugin(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, PluginReport> known;
  const std::lock_guard lock(mutex);
  const std::string key = file_state(path);
  if (const auto it = known.find(key); it != known.end()) return it->second;
  const std::string program = probe_program();
  const std::chrono::milliseconds deadline = probe_deadline();
  const ChildResult child = run_child({program, "plugin-probe", path}, deadline);
  return known[key] = judge(child, program, deadline);
}

}  // namespace heddle
