#include "plugins/conformance/result.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace heddle::conformance {
namespace {

// Items are separated by tabs; tab, newline and backslash inside an item are escaped.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char ch : text) {
    if (ch == '\t')
      out += "\\t";
    else if (ch == '\n')
      out += "\\n";
    else if (ch == '\\')
      out += "\\\\";
    else
      out += ch;
  }
  return out;
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char ch = text[++i];
    out += ch == 't' ? '\t' : ch == 'n' ? '\n' : ch;
  }
  return out;
}

class Writer {
 public:
  void add(const std::string& item) { line += (line.empty() ? "" : "\t") + escaped(item); }
  void add(int64_t n) { add(std::to_string(n)); }
  std::string line;
};

class Reader {
 public:
  explicit Reader(std::string_view line) : rest_(line) {}
  std::string text() {
    if (ended_) {
      failed = true;
      return {};
    }
    const size_t end = rest_.find('\t');
    const std::string item = unescaped(rest_.substr(0, end));
    ended_ = end == std::string_view::npos;
    if (!ended_) rest_.remove_prefix(end + 1);
    return item;
  }
  int64_t number() {
    const std::string item = text();
    int64_t n = 0;
    const auto r = std::from_chars(item.data(), item.data() + item.size(), n);
    if (r.ec != std::errc{} || r.ptr != item.data() + item.size()) failed = true;
    return n;
  }
  // A count that a line of this length can hold.
  int64_t count() {
    const int64_t n = number();
    if (n < 0 || n > static_cast<int64_t>(rest_.size()) + 1) failed = true;
    return failed ? 0 : n;
  }
  bool at_end() const { return ended_; }
  bool failed = false;

 private:
  std::string_view rest_;
  bool ended_ = false;
};

}  // namespace

int64_t CheckReport::count(Status status) const {
  int64_t n = 0;
  for (const RuleResult& r : rules) n += r.status == status;
  return n;
}

int64_t CheckReport::executed_cases() const {
  int64_t n = 0;
  for (const RuleResult& r : rules) n += r.executed_cases();
  return n;
}

bool CheckReport::passed() const {
  return count(Status::kFailed) == 0 && executed_cases() > 0;
}

std::string to_line(const RuleResult& r) {
  Writer w;
  w.add(r.id);
  w.add(r.name);
  w.add(static_cast<int64_t>(r.status));
  w.add(r.skip_reason);
  for (const int64_t n : r.executed) w.add(n);
  w.add(r.refused);
  w.add(static_cast<int64_t>(r.seconds * 1e6));
  w.add(static_cast<int64_t>(r.notes.size()));
  for (const std::string& note : r.notes) w.add(note);
  w.add(static_cast<int64_t>(r.findings.size()));
  for (const Finding& f : r.findings) {
    w.add(f.symptom);
    w.add(f.problem ? to_spec(*f.problem) : "");
    w.add(f.difference);
    w.add(f.diagnosis);
  }
  return w.line;
}

std::optional<RuleResult> parse_line(const std::string& line) {
  Reader in(line);
  RuleResult r;
  r.id = in.text();
  r.name = in.text();
  const int64_t status = in.number();
  if (status < 0 || status > static_cast<int64_t>(Status::kSkipped)) return std::nullopt;
  r.status = static_cast<Status>(status);
  r.skip_reason = in.text();
  for (int64_t& n : r.executed) n = in.number();
  r.refused = in.number();
  r.seconds = static_cast<double>(in.number()) * 1e-6;
  for (int64_t n = in.count(); n > 0; --n) r.notes.push_back(in.text());
  for (int64_t n = in.count(); n > 0; --n) {
    Finding f;
    f.symptom = in.text();
    std::string error;
    if (const std::string spec = in.text(); !spec.empty()) f.problem = parse_spec(spec, &error);
    f.difference = in.text();
    f.diagnosis = in.text();
    r.findings.push_back(std::move(f));
  }
  if (in.failed || !in.at_end()) return std::nullopt;
  return r;
}

}  // namespace heddle::conformance
