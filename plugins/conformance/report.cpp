#include "plugins/conformance/report.h"

#include <cstdio>
#include <string_view>

namespace heddle::conformance {
namespace {

const char* status_word(Status status) {
  constexpr const char* kWords[] = {"pass", "FAIL", "skip"};
  return kWords[static_cast<size_t>(status)];
}

// printf into a string.
template <class... Args>
std::string print(const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

// An argument as a POSIX shell reads it.
std::string shell_word(const std::string& text) {
  if (!text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_-./=,:+") == std::string::npos) {
    return text;
  }
  std::string quoted = "'";
  for (const char ch : text) quoted += ch == '\'' ? std::string("'\\''") : std::string(1, ch);
  return quoted + "'";
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char ch : text) {
    const auto byte = static_cast<unsigned char>(ch);
    if (ch == '"' || ch == '\\') {
      out += '\\';
      out += ch;
    } else if (ch == '\n') {
      out += "\\n";
    } else if (byte < 0x20) {
      out += print("\\u%04x", static_cast<unsigned>(byte));
    } else {
      out += ch;
    }
  }
  return out + "\"";
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char ch : text) {
    const auto byte = static_cast<unsigned char>(ch);
    if (ch == '&')
      out += "&amp;";
    else if (ch == '<')
      out += "&lt;";
    else if (ch == '>')
      out += "&gt;";
    else if (ch == '"')
      out += "&quot;";
    else if (ch == '\n')
      out += "&#10;";
    else if (byte >= 0x20 || ch == '\t')
      out += ch;
    else
      out += '?';
  }
  return out;
}

std::string findings_text(const CheckReport& report, const RuleResult& rule) {
  std::string text;
  for (const Finding& f : rule.findings) {
    text += "           " + f.symptom + "\n";
    if (f.problem) text += "             smallest problem: " + describe(*f.problem) + "\n";
    if (!f.difference.empty()) text += "             first difference: " + f.difference + "\n";
    if (!f.diagnosis.empty()) text += "             looks like: " + f.diagnosis + "\n";
    text += "             repeat: " + repeat_command(report, rule, f) + "\n";
  }
  return text;
}

std::string json_finding(const CheckReport& report, const RuleResult& rule, const Finding& f) {
  std::string text = "{\"symptom\": " + json_string(f.symptom);
  if (f.problem) {
    text += ", \"case\": " + json_string(to_spec(*f.problem)) +
            ", \"problem\": " + json_string(describe(*f.problem));
  }
  text += ", \"difference\": " + json_string(f.difference);
  text += ", \"diagnosis\": " + json_string(f.diagnosis);
  return text + ", \"repeat\": " + json_string(repeat_command(report, rule, f)) + "}";
}

std::string json_rule(const CheckReport& report, const RuleResult& r) {
  std::string text = "    {\"id\": " + json_string(r.id) + ", \"name\": " + json_string(r.name) +
                     ", \"status\": \"" +
                     (r.status == Status::kPassed   ? "passed"
                      : r.status == Status::kFailed ? "failed"
                                                    : "skipped") +
                     "\"";
  if (!r.skip_reason.empty()) text += ", \"skip_reason\": " + json_string(r.skip_reason);
  text += print(", \"cases\": %lld, \"refused\": %lld, \"seconds\": %.3f",
                static_cast<long long>(r.executed_cases()), static_cast<long long>(r.refused),
                r.seconds);
  text += ", \"notes\": [";
  for (size_t i = 0; i < r.notes.size(); ++i) text += (i ? ", " : "") + json_string(r.notes[i]);
  text += "], \"findings\": [";
  for (size_t i = 0; i < r.findings.size(); ++i) {
    text += (i ? ", " : "") + json_finding(report, r, r.findings[i]);
  }
  return text + "]}";
}

}  // namespace

std::string repeat_command(const CheckReport& report, const RuleResult& rule,
                           const Finding& finding) {
  std::string text =
      "heddle plugin check " + shell_word(report.path) + report.where + " --only " + rule.id;
  if (finding.problem) return text + " --case " + shell_word(to_spec(*finding.problem));
  if (report.level == "quick") text += " --quick";
  return text + " --seed " + std::to_string(report.seed);
}

std::string text_row(const CheckReport& report, const RuleResult& r) {
  std::string text = print("  %-8s %-36s %s", r.id.c_str(), r.name.c_str(), status_word(r.status));
  if (r.status != Status::kSkipped || r.executed_cases() > 0) {
    text += print(" %6lld cases %7.2f s", static_cast<long long>(r.executed_cases()), r.seconds);
  }
  if (!r.skip_reason.empty()) text += "  " + r.skip_reason;
  text += "\n";
  for (const std::string& note : r.notes) text += "           note: " + note + "\n";
  return text + findings_text(report, r);
}

std::string closing_lines(const CheckReport& report) {
  std::array<int64_t, 4> executed{};
  int64_t refused = 0;
  for (const RuleResult& r : report.rules) {
    for (size_t op = 0; op < executed.size(); ++op) executed[op] += r.executed[op];
    refused += r.refused;
  }
  std::string text = print(
      "%lld cases: forward %lld, backward %lld, decode %lld, other %lld; %lld refused by query()\n",
      static_cast<long long>(report.executed_cases()), static_cast<long long>(executed[1]),
      static_cast<long long>(executed[2]), static_cast<long long>(executed[3]),
      static_cast<long long>(executed[0]), static_cast<long long>(refused));
  if (report.executed_cases() == 0) text += "no case ran: that is a failure\n";
  return text + print("%lld passed, %lld failed, %lld skipped\n",
                      static_cast<long long>(report.count(Status::kPassed)),
                      static_cast<long long>(report.count(Status::kFailed)),
                      static_cast<long long>(report.count(Status::kSkipped)));
}

std::string text_report(const CheckReport& report) {
  std::string text;
  for (const RuleResult& r : report.rules) text += text_row(report, r);
  return text + closing_lines(report);
}

std::string json_report(const CheckReport& report) {
  std::string text = "{\n  \"plugin\": " + json_string(report.plugin) +
                     ",\n  \"version\": " + json_string(report.version) +
                     ",\n  \"path\": " + json_string(report.path) +
                     ",\n  \"level\": " + json_string(report.level) +
                     ",\n  \"seed\": " + std::to_string(report.seed);
  text += print(",\n  \"passed\": %lld,\n  \"failed\": %lld,\n  \"skipped\": %lld",
                static_cast<long long>(report.count(Status::kPassed)),
                static_cast<long long>(report.count(Status::kFailed)),
                static_cast<long long>(report.count(Status::kSkipped)));
  text +=
      print(",\n  \"cases\": %lld,\n  \"ok\": %s,\n  \"rules\": [\n",
            static_cast<long long>(report.executed_cases()), report.passed() ? "true" : "false");
  for (size_t i = 0; i < report.rules.size(); ++i) {
    text += json_rule(report, report.rules[i]) + (i + 1 < report.rules.size() ? ",\n" : "\n");
  }
  return text + "  ]\n}\n";
}

std::string junit_report(const CheckReport& report) {
  double seconds = 0.0;
  for (const RuleResult& r : report.rules) seconds += r.seconds;
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"heddle plugin check " +
      xml_text(report.plugin) + "\"";
  text += print(" tests=\"%zu\" failures=\"%lld\" skipped=\"%lld\" time=\"%.3f\">\n",
                report.rules.size(), static_cast<long long>(report.count(Status::kFailed)),
                static_cast<long long>(report.count(Status::kSkipped)), seconds);
  for (const RuleResult& r : report.rules) {
    text += "  <testcase classname=\"" + xml_text(report.plugin) + "\" name=\"" + xml_text(r.id) +
            " " + xml_text(r.name) + "\"" + print(" time=\"%.3f\">\n", r.seconds);
    if (r.status == Status::kSkipped) {
      text += "    <skipped message=\"" + xml_text(r.skip_reason) + "\"/>\n";
    }
    if (r.status == Status::kFailed) {
      const std::string first = r.findings.empty() ? "" : r.findings.front().symptom;
      text += "    <failure message=\"" + xml_text(first) + "\">" +
              xml_text(findings_text(report, r)) + "</failure>\n";
    }
    text += "  </testcase>\n";
  }
  return text + "</testsuite>\n";
}

}  // namespace heddle::conformance
