#include "framework/config/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "framework/config/number.h"
#include "framework/config/suggest.h"

namespace heddle::config_internal {
namespace {

using Kind = YamlNode::Kind;

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "nothing (null)";
    case Kind::kScalar:
      return node.quoted ? fmt::format("the quoted text \"{}\"", node.text)
                         : fmt::format("`{}`", node.text);
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a mapping";
    case Kind::kRefused:
      break;
  }
  return "an alias";
}

Complaint wrong_kind(const YamlNode& node) {
  Complaint complaint{describe(node), {}};
  if (node.kind == Kind::kNull) complaint.remedy = "Write a value or remove the key";
  return complaint;
}

// Words that YAML readers take as booleans, and what the writer meant.
std::optional<bool> boolean_word(const YamlNode& node) {
  static constexpr std::string_view kTrue[] = {"true", "yes", "on", "y"};
  static constexpr std::string_view kFalse[] = {"false", "no", "off", "n"};
  if (node.kind != Kind::kScalar || node.quoted) return std::nullopt;
  const std::string word = lower_case(node.text);
  if (std::find(std::begin(kTrue), std::end(kTrue), word) != std::end(kTrue)) return true;
  if (std::find(std::begin(kFalse), std::end(kFalse), word) != std::end(kFalse)) return false;
  return std::nullopt;
}

std::optional<Complaint> read_number(const YamlNode& node, Number& out) {
  if (node.kind != Kind::kScalar) return wrong_kind(node);
  if (node.quoted) return Complaint{describe(node), "Remove the quotes"};
  out = parse_number(node.text);
  if (out.ok()) return std::nullopt;
  return Complaint{fmt::format("{} ({})", describe(node), out.problem), out.remedy};
}

template <class T>
std::optional<Complaint> outside(const T& value, const Rule& rule) {
  const double x = static_cast<double>(value);
  const bool low = rule.above_min ? x <= rule.min : x < rule.min;
  const bool high = rule.below_max ? x >= rule.max : x > rule.max;
  if (std::isfinite(x) && !low && !high) return std::nullopt;
  return Complaint{format_value(value), {}};
}

template <class T>
std::string range(const Rule& rule) {
  // As T, so that integer limits print without an exponent.
  const auto print = [](double x) { return format_value(static_cast<T>(x)); };
  const bool has_min = std::isfinite(rule.min);
  const bool has_max = std::isfinite(rule.max);
  if (has_min && has_max) {
    return fmt::format("{}{} to {}{}", rule.above_min ? "above " : "", print(rule.min),
                       rule.below_max ? "below " : "", print(rule.max));
  }
  if (has_min) return (rule.above_min ? "above " : "at least ") + print(rule.min);
  if (has_max) return (rule.below_max ? "below " : "at most ") + print(rule.max);
  return {};
}

bool is_free_text(std::string_view choice) {
  return choice.starts_with('<');
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

std::optional<Complaint> bad_folder_name(const std::string& name) {
  if (name.empty()) return Complaint{"an empty text", "Write a name"};
  if (name == "." || name == ".." || name.find_first_of("/ ") != std::string::npos) {
    return Complaint{fmt::format("`{}`", name), "A name has no slash and no space"};
  }
  return std::nullopt;
}

// Text that dump may write without quotes: nothing in it means anything to YAML.
bool is_plain_text(const std::string& text) {
  if (text.empty() || text[0] == '-' || text == "null" || text == "Null" || text == "NULL") {
    return false;
  }
  const YamlNode node{.kind = Kind::kScalar, .text = text, .items = {}, .entries = {}};
  if (boolean_word(node)) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '_' || c == '-' || c == '.' || c == '/';
  });
}

std::optional<Complaint> convert_windows(const YamlNode& node, WindowPattern& out) {
  WindowPattern pattern;
  for (const YamlNode& item : node.items) {
    if (auto complaint = convert(item, pattern.windows.emplace_back())) return complaint;
  }
  if (pattern.windows.empty()) {
    return Complaint{"an empty list", "Write letters such as SSSL, or a list such as [64]"};
  }
  out = pattern;
  return std::nullopt;
}

}  // namespace

std::string type_name(const int64_t&) {
  return "integer";
}
std::string type_name(const double&) {
  return "number";
}
std::string type_name(const bool&) {
  return "boolean";
}
std::string type_name(const std::string&) {
  return "text";
}
std::string type_name(const std::vector<std::string>&) {
  return "list of texts";
}
std::string type_name(const WindowPattern&) {
  return "letters or list of integers";
}

std::string limits(const int64_t&, const Rule& rule) {
  return range<int64_t>(rule);
}
std::string limits(const double&, const Rule& rule) {
  return range<double>(rule);
}
std::string limits(const bool&, const Rule&) {
  return "true or false";
}
std::string limits(const std::string&, const Rule& rule) {
  if (rule.choices.empty()) return {};
  if (rule.choices.size() == 1) return "not empty";
  std::vector<std::string> words;
  for (const std::string_view choice : rule.choices) {
    words.push_back(is_free_text(choice) ? "a " + std::string(choice.substr(1, choice.size() - 2))
                                         : std::string(choice));
  }
  return fmt::format("one of {}", fmt::join(words, ", "));
}
std::string limits(const std::vector<std::string>&, const Rule&) {
  return {};
}
std::string limits(const WindowPattern&, const Rule&) {
  return "S and L, or integers from -1 (no limit)";
}

bool is_auto(const YamlNode& node) {
  return node.kind == Kind::kScalar && node.text == "auto";
}

std::optional<Complaint> convert(const YamlNode& node, int64_t& out) {
  Number number;
  if (auto complaint = read_number(node, number)) return complaint;
  if (!number.integer) {
    const bool fraction = number.real != std::floor(number.real);
    return Complaint{fmt::format("{} ({})", describe(node),
                                 fraction ? "not a whole number" : "too large to be exact"),
                     {}};
  }
  out = *number.integer;
  return std::nullopt;
}

std::optional<Complaint> convert(const YamlNode& node, double& out) {
  Number number;
  if (auto complaint = read_number(node, number)) return complaint;
  out = number.real;
  return std::nullopt;
}

std::optional<Complaint> convert(const YamlNode& node, bool& out) {
  if (node.kind != Kind::kScalar) return wrong_kind(node);
  if (node.quoted) return Complaint{describe(node), "Remove the quotes"};
  if (node.text == "true" || node.text == "false") {
    out = node.text == "true";
    return std::nullopt;
  }
  Complaint complaint{describe(node), {}};
  if (const auto meant = boolean_word(node)) {
    complaint.remedy = fmt::format("Write {}", *meant);
  } else if (node.text == "0" || node.text == "1") {
    complaint.remedy = node.text == "1" ? "Write true" : "Write false";
  }
  return complaint;
}

std::optional<Complaint> convert(const YamlNode& node, std::string& out) {
  if (node.kind == Kind::kNull) {
    return Complaint{describe(node), "Write \"\" for an empty text, or remove the key"};
  }
  if (node.kind != Kind::kScalar) return wrong_kind(node);
  if (boolean_word(node)) {
    return Complaint{describe(node) + " (a boolean)", "Quote it if it is meant as text"};
  }
  out = node.text;
  return std::nullopt;
}

std::optional<Complaint> convert(const YamlNode& node, std::vector<std::string>& out) {
  std::vector<std::string> texts;
  if (node.kind != Kind::kList) {
    if (auto complaint = convert(node, texts.emplace_back())) return complaint;
  }
  for (const YamlNode& item : node.items) {
    if (auto complaint = convert(item, texts.emplace_back())) return complaint;
  }
  out = texts;
  return std::nullopt;
}

std::optional<Complaint> convert(const YamlNode& node, WindowPattern& out) {
  if (node.kind == Kind::kList) return convert_windows(node, out);
  if (node.kind != Kind::kScalar) return wrong_kind(node);
  if (!node.quoted && parse_number(node.text).integer) {
    return Complaint{describe(node),
                     fmt::format("For a window of {0} in all layers write [{0}]", node.text)};
  }
  out = WindowPattern{};
  out.letters = node.text;
  for (char& c : out.letters) {
    if (c == 's') c = 'S';
    if (c == 'l') c = 'L';
  }
  return std::nullopt;
}

std::optional<Complaint> violation(const int64_t& value, const Rule& rule) {
  return outside(value, rule);
}
std::optional<Complaint> violation(const double& value, const Rule& rule) {
  return outside(value, rule);
}
std::optional<Complaint> violation(const bool&, const Rule&) {
  return std::nullopt;
}

std::optional<Complaint> violation(const std::string& value, const Rule& rule) {
  if (has_control_characters(value)) {
    return Complaint{"text with a line break or control character", "Write it on one line"};
  }
  if (rule.choices.empty()) return std::nullopt;
  std::vector<std::string> words;
  for (const std::string_view choice : rule.choices) {
    if (value == choice && !is_free_text(choice)) return std::nullopt;
    if (choice == "<name>") return bad_folder_name(value);
    if (is_free_text(choice)) {
      if (value.empty()) return Complaint{"an empty text", {}};
      return std::nullopt;
    }
    words.emplace_back(choice);
  }
  Complaint complaint{fmt::format("`{}`", value), {}};
  const std::string near = nearest(lower_case(value), words);
  if (!near.empty()) complaint.remedy = fmt::format("Did you mean {}?", near);
  return complaint;
}

std::optional<Complaint> violation(const std::vector<std::string>& value, const Rule&) {
  for (const std::string& text : value) {
    if (text.empty()) return Complaint{"an empty text in the list", "Remove it"};
    if (auto complaint = violation(text, Rule{})) return complaint;
  }
  return std::nullopt;
}

std::optional<Complaint> violation(const WindowPattern& value, const Rule&) {
  for (const int64_t window : value.windows) {
    if (window < -1) {
      return Complaint{fmt::format("the window {}", window),
                       "A window is a number of earlier keys; -1 means all of them"};
    }
  }
  if (!value.windows.empty()) return std::nullopt;
  if (value.letters.empty()) return Complaint{"an empty pattern", "Write for example L or SSSL"};
  const size_t bad = value.letters.find_first_not_of("SLsl");
  if (bad == std::string::npos) return std::nullopt;
  return Complaint{fmt::format("`{}`, whose character '{}' is neither S nor L", value.letters,
                               value.letters[bad]),
                   "Use S for a short window and L for all keys, for example SSSL"};
}

std::string format_value(const int64_t& value) {
  return std::to_string(value);
}
std::string format_value(const double& value) {
  return fmt::format("{}", value);
}
std::string format_value(const bool& value) {
  return value ? "true" : "false";
}

std::string format_value(const std::string& value) {
  if (is_plain_text(value)) return value;
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string format_value(const std::vector<std::string>& value) {
  std::vector<std::string> items;
  for (const std::string& text : value) items.push_back(format_value(text));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string format_value(const WindowPattern& value) {
  if (value.windows.empty()) return format_value(value.letters);
  return fmt::format("[{}]", fmt::join(value.windows, ", "));
}

}  // namespace heddle::config_internal
