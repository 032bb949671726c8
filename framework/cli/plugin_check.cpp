// heddle plugin check: every rule in a process of its own, so that a plugin which crashes, exits or
// hangs costs that row and no more.
#include "framework/cli/plugin_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "framework/attention/catalog.h"
#include "framework/attention/child_process.h"
#include "framework/attention/names.h"
#include "framework/cli/plugin_check_rule.h"
#include "framework/cli/plugin_device.h"
#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/core/parallel_for.h"
#include "plugins/conformance/report.h"
#include "plugins/conformance/rules.h"
#include "plugins/conformance/shrink.h"

namespace heddle {
namespace {

using conformance::CheckReport;
using conformance::Finding;
using conformance::Rule;
using conformance::RuleResult;
using conformance::Status;

// A plugin that hangs or dies does so in most rules: after this many the rest is not worth it.
constexpr int kMostHangs = 2;
constexpr int kMostShrunkCrashes = 2;
constexpr int kCrashShrinkBudget = 40;

struct Settings {
  std::string plugin;
  std::vector<std::string> only;
  std::string op, spec, json_file, junit_file, device = "cpu", dtype;
  int64_t seed = 1;
  bool quick = false, fail_fast = false;
  int timeout_s = 0;  // 0: by level
  AttentionConfig attention;
};

// What the process of a rule had to say.
struct Told {
  ChildResult child;
  std::string stage, name, version, refusal;
  std::optional<RuleResult> result;

  // It ended before it could tell.
  bool lost() const { return !result && refusal.empty(); }
};

class Runner {
 public:
  explicit Runner(const Settings& settings) : s_(settings) {
    program_ = std::filesystem::read_symlink("/proc/self/exe").string();
    const int seconds = s_.timeout_s > 0 ? s_.timeout_s : s_.quick ? 60 : 300;
    deadline_ = std::chrono::seconds(seconds);
  }

  void set_path(std::string path) { path_ = std::move(path); }

  // Runs the rule, or one case of it, in a fresh process.
  Told ask(const Rule& rule, const std::string& spec) const {
    std::vector<std::string> arguments = {program_, "plugin", "check-rule",           path_,
                                          rule.id,  "--seed", std::to_string(s_.seed)};
    if (s_.quick) arguments.push_back("--quick");
    arguments.insert(arguments.end(), {"--device", s_.device});
    if (!s_.dtype.empty()) arguments.insert(arguments.end(), {"--dtype", s_.dtype});
    if (!s_.op.empty()) arguments.insert(arguments.end(), {"--op", s_.op});
    if (!spec.empty()) arguments.insert(arguments.end(), {"--case", spec});
    Told told;
    told.child = run_child(arguments, deadline_);
    read_lines(told);
    return told;
  }

  RuleResult run(const Rule& rule) {
    if (hangs_ >= kMostHangs) return skipped(rule, "not run: the plugin hung in earlier rules");
    const auto start = std::chrono::steady_clock::now();
    Told told = ask(rule, s_.spec);
    RuleResult result = told.result ? *told.result : lost(rule, told);
    if (told.lost()) {
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      result.seconds = time.count();
    }
    return result;
  }

 private:
  static void read_lines(Told& told) {
    std::string_view text = told.child.report;
    while (!text.empty()) {
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) break;
      const std::string line(text.substr(0, end));
      text.remove_prefix(end + 1);
      if (line.size() < 2) continue;
      const std::string rest = line.substr(2);
      if (line[0] == '#') told.stage = rest;
      if (line[0] == '!') told.refusal = rest;
      if (line[0] == '=') told.result = conformance::parse_line(rest);
      if (line[0] == '@') {
        told.name = rest.substr(0, rest.find('\t'));
        told.version = rest.substr(std::min(rest.size(), told.name.size() + 1));
      }
    }
    // A process that dies after its report has still died.
    if (told.child.signal != 0 || told.child.exit_status != 0 || told.child.timed_out) {
      told.result.reset();
    }
  }

  static RuleResult skipped(const Rule& rule, const std::string& why) {
    RuleResult result;
    result.id = rule.id;
    result.name = rule.name;
    result.skip_reason = why;
    return result;
  }

  std::string ending(const ChildResult& child) const {
    if (child.timed_out) {
      return fmt::format("hangs: no end within {} s", deadline_.count());
    }
    if (child.signal != 0) {
      return fmt::format("dies of signal {} ({})", child.signal, strsignal(child.signal));
    }
    return fmt::format("ends its process with exit status {}", child.exit_status);
  }

  RuleResult lost(const Rule& rule, const Told& told) {
    RuleResult result = skipped(rule, "");
    result.status = Status::kFailed;
    Finding finding;
    if (!told.refusal.empty()) {
      finding.symptom = told.refusal;
      result.findings.push_back(finding);
      return result;
    }
    result.executed[0] = 1;
    if (told.child.timed_out) ++hangs_;
    std::string error;
    finding.problem = conformance::parse_spec(told.stage, &error);
    const std::string where =
        finding.problem ? conformance::op_name(finding.problem->op) : told.stage;
    finding.symptom = fmt::format("the plugin {} in {}", ending(told.child), where);
    if (const std::string printed = clean_text(told.child.output, 200); !printed.empty()) {
      finding.difference = "it printed: " + printed;
    }
    if (finding.problem && !told.child.timed_out && shrunk_++ < kMostShrunkCrashes) {
      const auto dies = [&](const conformance::Case& c) { return ask(rule, to_spec(c)).lost(); };
      if (dies(*finding.problem)) {
        finding.problem = conformance::shrink(*finding.problem, dies, kCrashShrinkBudget);
      }
    }
    result.findings.push_back(finding);
    return result;
  }

  const Settings& s_;
  std::string program_, path_;
  std::chrono::seconds deadline_;
  std::atomic<int> hangs_{0}, shrunk_{0};
};

std::string find_plugin(const Settings& s) {
  namespace fs = std::filesystem;
  const std::string& plugin = s.plugin;
  if (plugin.find('/') != std::string::npos || plugin.ends_with(".so")) {
    std::error_code ec;
    const fs::path path = fs::canonical(plugin, ec);
    if (ec) {
      throw plugin_error(fmt::format("{}: {}", plugin, ec.message()), "check the path");
    }
    return path.string();
  }
  const PluginCatalog catalog = make_plugin_catalog(s.attention);
  std::vector<std::string> names;
  for (const PluginCandidate& c : catalog.plugins) {
    if (c.display_name() == plugin) return c.file.path;
    names.push_back(c.display_name());
  }
  throw plugin_error(
      fmt::format("no plugin is called '{}'; found: {}", plugin,
                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
      "name one of them or give the path of a .so file");
}

std::vector<const Rule*> choose_rules(const Settings& s) {
  std::vector<const Rule*> chosen;
  for (const Rule& rule : conformance::all_rules()) {
    if (s.only.empty() || std::find(s.only.begin(), s.only.end(), rule.id) != s.only.end()) {
      chosen.push_back(&rule);
    }
  }
  return chosen;
}

// Runs the rules, as many at a time as there are processors (up to 4), and prints their rows in
// order.
void run_rules(Runner& runner, const std::vector<const Rule*>& rules, bool fail_fast,
               CheckReport& report) {
  const size_t jobs = std::clamp<size_t>(static_cast<size_t>(available_processors()), 1, 4);
  std::vector<std::optional<RuleResult>> results(rules.size());
  std::mutex mutex;
  std::condition_variable ready;
  std::exception_ptr failure;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < rules.size(); i = next++) {
      std::optional<RuleResult> result;
      std::exception_ptr error;
      try {
        result = runner.run(*rules[i]);
      } catch (...) {  // the process could not be started
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      if (error) {
        failure = error;
        next = rules.size();
      }
      results[i] = std::move(result);
      ready.notify_one();
      if (error) return;
    }
  };
  std::vector<std::jthread> workers;
  for (size_t j = 0; j < jobs; ++j) workers.emplace_back(work);
  for (size_t i = 0; i < rules.size(); ++i) {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return results[i].has_value() || failure; });
    if (!results[i]) break;
    report.rules.push_back(*results[i]);
    lock.unlock();
    fmt::print("{}", text_row(report, report.rules.back()));
    std::fflush(stdout);
    if (fail_fast && report.rules.back().status == Status::kFailed) {
      next = rules.size();
      break;
    }
  }
  workers.clear();
  if (failure) std::rethrow_exception(failure);
}

int run_check(const Settings& s) {
  if (s.device != "cpu") make_plugin_device(s.device);  // throws when there is none
  Runner runner(s);
  CheckReport report;
  report.path = find_plugin(s);
  report.level = s.quick ? "quick" : "full";
  report.seed = s.seed;
  if (s.device != "cpu") report.where += " --device " + s.device;
  if (!s.dtype.empty()) report.where += " --dtype " + s.dtype;
  runner.set_path(report.path);
  const Told first = runner.ask(*conformance::find_rule("TABLE"), "");
  report.plugin = first.name.empty() ? s.plugin : first.name;
  report.version = first.version;
  if (first.name.empty() || !first.refusal.empty()) {
    const std::string why =
        first.refusal.empty() ? fmt::format("it does not survive {}", first.stage) : first.refusal;
    RuleResult load;
    load.id = "LOAD";
    load.name = "the library";
    load.status = Status::kFailed;
    load.findings.push_back({why, std::nullopt, "", ""});
    report.rules.push_back(load);
    fmt::print("plugin check: {}\n{}", report.path, text_row(report, load));
  } else {
    fmt::print("plugin check: {} {} ({}), {}, {}seed {}\n", report.plugin, report.version,
               report.path, report.level, s.device == "cpu" ? "" : "on " + s.device + ", ", s.seed);
    std::fflush(stdout);
    run_rules(runner, choose_rules(s), s.fail_fast, report);
  }
  if (!s.json_file.empty()) write_file_atomically(s.json_file, json_report(report));
  if (!s.junit_file.empty()) write_file_atomically(s.junit_file, junit_report(report));
  fmt::print("{}", closing_lines(report));
  return report.passed() ? 0 : static_cast<int>(ExitCode::kPlugin);
}

std::string bad_rule(const std::string& id) {
  if (conformance::find_rule(id)) return {};
  std::vector<std::string> ids;
  for (const Rule& rule : conformance::all_rules()) ids.push_back(rule.id);
  return fmt::format("'{}' is no rule; rules: {}", id, fmt::join(ids, " "));
}

std::string bad_case(const std::string& spec) {
  std::string error;
  conformance::parse_spec(spec, &error);
  return error;
}

void add_rule_process(CLI::App& plugin, int& exit_code) {
  auto arguments = std::make_shared<RuleArguments>();
  CLI::App* rule = plugin.add_subcommand("check-rule")->group("");
  rule->add_option("path", arguments->path)->required();
  rule->add_option("rule", arguments->rule)->required()->check(bad_rule);
  rule->add_option("--seed", arguments->seed);
  rule->add_option("--op", arguments->op);
  rule->add_option("--device", arguments->device);
  rule->add_option("--dtype", arguments->dtype);
  rule->add_option("--case", arguments->spec)->check(bad_case);
  rule->add_flag("--quick", arguments->quick);
  rule->callback([arguments, &exit_code] { exit_code = run_check_rule(*arguments); });
}

void list_rules() {
  for (const Rule& rule : conformance::all_rules()) {
    fmt::print("{:<8} {}: {}\n", rule.id, rule.name, rule.what);
  }
}

}  // namespace

void add_check(CLI::App& plugin, int& exit_code) {
  auto s = std::make_shared<Settings>();
  CLI::App* check =
      plugin.add_subcommand("check", "Find out what is wrong with a plugin, in words");
  check->add_option("plugin", s->plugin, "name of a plugin, or path of a .so file")->required();
  check->add_flag("--quick", s->quick, "seconds instead of a minute");
  check->add_flag("--fail-fast", s->fail_fast, "stop after the first rule that fails");
  check->add_option("--only", s->only, "rules, separated by commas")
      ->delimiter(',')
      ->check(bad_rule);
  check->add_option("--op", s->op, "one operation")
      ->check(CLI::IsMember({"forward", "backward", "decode"}));
  check->add_option("--device", s->device, "where: cpu (default) or cuda, its device 0")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  check->add_option("--dtype", s->dtype, "f32, bf16 or f16 where a rule leaves it open")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  check->add_option("--seed", s->seed, "of all random values");
  check->add_option("--case", s->spec, "one case, as a failure prints it; with --only RULE")
      ->check(bad_case)
      ->needs(check->get_option("--only"));
  check->add_option("--json", s->json_file, "write the report to this file");
  check->add_option("--junit", s->junit_file, "write a JUnit report to this file");
  check->add_option("--timeout", s->timeout_s, "seconds for one rule (60 quick, 300 full)")
      ->check(CLI::PositiveNumber);
  check->add_option("--plugin-path", s->attention.plugin_path,
                    "folders or .so files to search first, as attention.plugin_path");
  check->add_flag_callback(
      "--list-rules",
      [] {
        list_rules();
        throw CLI::Success();
      },
      "print the rules and what they check");
  check->callback([s, &exit_code] { exit_code = run_check(*s); });
  add_rule_process(plugin, exit_code);
}

}  // namespace heddle
