#include "framework/config/dump.h"

#include <fmt/format.h>

#include "framework/config/fields.h"
#include "framework/config/value.h"

namespace heddle {

using namespace config_internal;

namespace {

struct Dumper {
  std::string text;

  template <class S>
  void section(std::string_view name, S& section, std::string_view) {
    text += fmt::format("{}{}:\n", text.empty() ? "" : "\n", name);
    visit_fields(section, *this);
  }
  template <class T>
  void field(std::string_view name, T& value, const Rule&, std::string_view) {
    text += fmt::format("  {}: {}\n", name, format_value(value));
  }
};

}  // namespace

std::string dump_config(const Config& config) {
  Dumper dumper;
  Config copy = config;  // visitors take sections by reference
  visit_sections(copy, dumper);
  return dumper.text;
}

}  // namespace heddle
