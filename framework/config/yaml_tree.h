// YAML text as a tree that forgets nothing a strict reader needs: lines, quotes, and duplicate
// keys, of which yaml-cpp's own nodes silently keep the first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "framework/config/problem.h"

namespace heddle::config_internal {

struct YamlEntry;

struct YamlNode {
  enum class Kind {
    kNull,     // nothing, `null` or `~`
    kScalar,   // text
    kList,     // items
    kMap,      // entries
    kRefused,  // an alias; already reported
  };

  Kind kind = Kind::kNull;
  int line = 0;
  std::string text;
  bool quoted = false;  // 'x', "x" or a block scalar: always text
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;  // unique keys, in the order of the text

  const YamlEntry* find(std::string_view key) const;
};

struct YamlEntry {
  std::string key;
  int line = 0;
  YamlNode value;
};

// The one document of `text`; kNull when there is none. Text that is not YAML, or more than one
// document, throws a config error with file and line. Duplicate keys, keys that are not plain
// words, anchors, aliases, merges (`<<`) and tags are appended to `problems` and left out.
YamlNode parse_yaml(const std::string& text, const Source& source, std::vector<Problem>& problems);

}  // namespace heddle::config_internal
