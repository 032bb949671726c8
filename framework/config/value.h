// Values of configuration fields, one overload per field type:
//   type_name(v)          "integer"; docs and messages
//   limits(v, rule)       "1 to 4096", "true or false", "one of muon, adamw"; may be empty
//   convert(node, v)      YAML -> value, refusing whatever could be read in two ways
//   violation(v, rule)    what is wrong with a value, as the remedy or reason; nullopt if nothing
//   format_value(v)       value -> YAML that convert() reads back to the same value
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/config/config.h"
#include "framework/config/fields.h"
#include "framework/config/yaml_tree.h"

namespace heddle::config_internal {

// Why a value is refused.
struct Complaint {
  std::string got;     // "the quoted text \"4\""
  std::string remedy;  // a sentence, may be empty
};

std::string type_name(const int64_t&);
std::string type_name(const double&);
std::string type_name(const bool&);
std::string type_name(const std::string&);
std::string type_name(const std::vector<std::string>&);
std::string type_name(const WindowPattern&);

std::string limits(const int64_t&, const Rule& rule);
std::string limits(const double&, const Rule& rule);
std::string limits(const bool&, const Rule& rule);
std::string limits(const std::string&, const Rule& rule);
std::string limits(const std::vector<std::string>&, const Rule& rule);
std::string limits(const WindowPattern&, const Rule& rule);

std::optional<Complaint> convert(const YamlNode& node, int64_t& out);
std::optional<Complaint> convert(const YamlNode& node, double& out);
std::optional<Complaint> convert(const YamlNode& node, bool& out);
std::optional<Complaint> convert(const YamlNode& node, std::string& out);
std::optional<Complaint> convert(const YamlNode& node, std::vector<std::string>& out);
std::optional<Complaint> convert(const YamlNode& node, WindowPattern& out);

std::optional<Complaint> violation(const int64_t& value, const Rule& rule);
std::optional<Complaint> violation(const double& value, const Rule& rule);
std::optional<Complaint> violation(const bool& value, const Rule& rule);
std::optional<Complaint> violation(const std::string& value, const Rule& rule);
std::optional<Complaint> violation(const std::vector<std::string>& value, const Rule& rule);
std::optional<Complaint> violation(const WindowPattern& value, const Rule& rule);

std::string format_value(const int64_t& value);
std::string format_value(const double& value);
std::string format_value(const bool& value);
std::string format_value(const std::string& value);
std::string format_value(const std::vector<std::string>& value);
std::string format_value(const WindowPattern& value);

bool is_auto(const YamlNode& node);

template <class T>
std::string type_name(const Auto<T>&) {
  return type_name(T{}) + " or auto";
}
template <class T>
std::string limits(const Auto<T>&, const Rule& rule) {
  return limits(T{}, rule);
}
template <class T>
std::optional<Complaint> convert(const YamlNode& node, Auto<T>& out) {
  if (is_auto(node)) {
    out.reset();
    return std::nullopt;
  }
  return convert(node, out.emplace());
}
template <class T>
std::optional<Complaint> violation(const Auto<T>& value, const Rule& rule) {
  return value ? violation(*value, rule) : std::nullopt;
}
template <class T>
std::string format_value(const Auto<T>& value) {
  return value ? format_value(*value) : "auto";
}

// "integer or auto, 1 to 4096": type and limits for a message.
template <class T>
std::string expectation(const T& value, const Rule& rule) {
  const std::string range = limits(value, rule);
  return range.empty() ? type_name(value) : type_name(value) + ", " + range;
}

}  // namespace heddle::config_internal
