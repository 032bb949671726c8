#include "framework/cli/plugin_check_rule.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>

#include "framework/attention/child_process.h"
#include "framework/attention/names.h"
#include "framework/attention/plugin.h"
#include "framework/attention/selection.h"
#include "framework/cli/plugin_device.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "plugins/conformance/rules.h"

namespace heddle {
namespace {

// What the parent reads at most; later progress is dropped so that the result still fits.
constexpr size_t kMostProgress = 700'000;

// Rules that call the plugin from several threads tell their progress from them.
class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}

  void progress(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (sent_ <= kMostProgress) write_line("# " + text);
  }
  void send(const std::string& line) {
    const std::lock_guard lock(mutex_);
    write_line(line);
  }

 private:
  void write_line(const std::string& line) {
    std::string bytes = line + "\n";
    sent_ += bytes.size();
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const ssize_t n = ::write(fd_, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }

  int fd_;
  std::mutex mutex_;
  size_t sent_ = 0;
};

conformance::Options make_options(const RuleArguments& arguments) {
  conformance::Options options;
  options.quick = arguments.quick;
  options.seed = arguments.seed;
  options.only_op = operation_of(arguments.op);
  std::string error;
  if (!arguments.spec.empty()) options.only = conformance::parse_spec(arguments.spec, &error);
  return options;
}

void check(const RuleArguments& arguments, Wire& wire) {
  const auto progress = [&wire](const std::string& text) { wire.progress(text); };
  progress("the start of the check");
  set_num_threads(static_cast<int>(conformance::kMostWorkers));
  PluginLibrary& library = PluginLibrary::load(arguments.path, progress);
  wire.send("@ " + library.name() + "\t" + library.version());
  require_device_kind(library, arguments.device);
  // Before the suite's fault handlers, since a driver may look at signals when it starts. Both live
  // as long as the process: a plugin may crash in destroy().
  conformance::Target target = conformance::host_target();
  if (arguments.device != "cpu") {
    static Device* const device = make_plugin_device(arguments.device).release();
    target = {plugin_device(*device), new DeviceMemory(*device), device->stream()};
  }
  conformance::prepare_process();
  conformance::Session session(library.table(), progress, target, dtype_of(arguments.dtype));
  const conformance::Rule& rule = *conformance::find_rule(arguments.rule);
  wire.send("= " + to_line(conformance::run_rule(session, rule, make_options(arguments))));
}

}  // namespace

uint32_t operation_of(const std::string& name) {
  for (const uint32_t op : {HEDDLE_OP_FORWARD, HEDDLE_OP_BACKWARD, HEDDLE_OP_DECODE}) {
    if (name == op_name(op)) return op;
  }
  return 0;
}

int run_check_rule(const RuleArguments& arguments) {
  Wire wire(child_report_descriptor());
  try {
    check(arguments, wire);
    wire.progress("the end of the process");
    return 0;
  } catch (const Error& e) {
    wire.send("! " + e.message() + (e.remedy().empty() ? "" : ". " + e.remedy()));
  } catch (const std::exception& e) {
    wire.send(std::string("! ") + e.what());
  }
  return 0;
}

}  // namespace heddle
