#include "framework/config/reference.h"

#include <fmt/format.h>

#include "framework/config/fields.h"
#include "framework/config/value.h"

namespace heddle {

using namespace config_internal;

namespace {

constexpr std::string_view kIntroduction =
    R"(# Configuration

<!-- Generated from framework/config/fields.h. After a change there:
     cmake --build build/release --target heddle_config_reference
     build/release/bin/heddle_config_reference > docs/configuration.md -->

A run is one YAML file with the sections below. Every key has a default, so a file holds only what
differs; an empty file is a run on the embedded corpus. `heddle train FILE --dry-run` prints the
whole configuration without starting, and a run keeps it as `config.yaml` in its folder.

**Overrides.** Any key can be set on the command line after the file, as `section.key=value` or
`--section.key=value`: `heddle train run.yaml model.n_kv_head=2 model.window_pattern=[64]`. The
value is read as YAML, the last one of a key wins, and an empty value (`data.path=`) is the empty
text. Quote values that the shell would touch.

**Numbers.** `60_000`, `1e-3`, `0.02`, `1e6` and `0x10` are read as written; an integer key takes
`1e6` or `2.0` because they are whole. Refused rather than guessed: leading zeros (`010`), `1:30`,
`1,000`, `10M`, numbers in quotes, infinities, NaN and what does not fit. Booleans are `true` and
`false` only. Text needs no quotes unless YAML wants them.

**Strictness.** Unknown, repeated, empty (null) and misspelt keys are errors with file and line, and
so are values out of range and fields that do not fit each other. Anchors, aliases, `<<` and tags
are refused. Relative paths start at the folder in which `heddle` runs.
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '<') out += '\\';
    out += c;
  }
  return out;
}

struct ReferenceWriter {
  std::string text = std::string(kIntroduction);

  template <class S>
  void section(std::string_view name, S& section, std::string_view help) {
    text += fmt::format(
        "\n## {}\n\nIn this section: {}.\n\n| key | type | default | accepted | meaning |\n"
        "|---|---|---|---|---|\n",
        name, escaped(help));
    visit_fields(section, *this);
  }
  template <class T>
  void field(std::string_view name, T& value, const Rule& rule, std::string_view help) {
    text += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", name, type_name(value),
                        format_value(value), escaped(limits(value, rule)), escaped(help));
  }
};

}  // namespace

std::string config_reference_markdown() {
  ReferenceWriter writer;
  Config defaults;
  visit_sections(defaults, writer);
  return writer.text;
}

}  // namespace heddle
