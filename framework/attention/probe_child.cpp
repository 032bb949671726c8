// The child's side of a probe. What happens here may crash, hang or exit: the parent knows how far
// it came from the last progress line.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "framework/attention/names.h"
#include "framework/attention/plugin.h"
#include "framework/attention/probe.h"
#include "framework/attention/probe_problems.h"
#include "framework/attention/probe_report.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

// Enough to run bodies at the same time, and no more than a crowded machine bears.
constexpr int kWorkers = 2;

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void introduce(const PluginLibrary& library, PluginReport& report) {
  const heddle_attention_plugin& table = library.table();
  report.name = library.name();
  report.version = library.version();
  report.description = library.description();
  report.abi = fmt::format("{}.{}", table.abi_major, table.abi_minor);
  report.device_type = table.device_type;
  report.properties = property_names(table.properties);
}

void probe(const std::string& path, const PluginStage& stage, PluginReport& report) {
  PluginLibrary& library = PluginLibrary::load(path, stage);
  introduce(library, report);
  if (library.table().device_type != HEDDLE_DEVICE_CPU) {
    report.notes.push_back("its numbers are not checked here: it does not serve the CPU");
    return;
  }
  stage("create()");
  const PluginContext context(library, cpu_plugin_device());
  run_probe_problems(context, stage, report);
  stage("destroy()");
}

}  // namespace

int plugin_probe_main(const char* path, int out_fd) {
  const PluginStage stage = [out_fd](const std::string& what) {
    write_all(out_fd, "# " + what + "\n");
  };
  stage("the start of the probe");
  set_num_threads(kWorkers);
  PluginReport report;
  try {
    probe(path, stage, report);
    report.usable = true;
  } catch (const Error& error) {
    report.refusal = error.message();
    report.remedy = error.remedy();
  } catch (const std::exception& error) {
    report.refusal =
        fmt::format("threw a C++ exception across the C boundary: {}", clean_text(error.what()));
    report.remedy = "catch everything inside the plugin";
  }
  return write_all(out_fd, write_report(report) + "\n") ? 0 : 1;
}

}  // namespace heddle
