#include "framework/config/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "framework/config/check.h"
#include "framework/config/fields.h"
#include "framework/config/problem.h"
#include "framework/config/suggest.h"
#include "framework/config/value.h"
#include "framework/config/yaml_tree.h"

namespace heddle {

using namespace config_internal;

namespace {

namespace fs = std::filesystem;

struct Override {
  std::string key;
  YamlNode value;
};

std::string unknown_key_text(const std::string& key) {
  const std::string section = key.substr(0, key.find('.'));
  const std::vector<std::string> names = keys_of_section(section);
  if (names.empty()) {
    return fmt::format("{}: unknown key, expected a section and a key; sections are {}", key,
                       fmt::join(all_sections(), ", "));
  }
  return fmt::format("{}: unknown key; keys of {} are {}", key, section, fmt::join(names, ", "));
}

// "--model.n_head=2" -> {"model.n_head", node 2}; nullopt after a problem.
std::optional<Override> parse_override(std::string text, const Source& source,
                                       std::vector<Problem>& problems) {
  const std::string original = text;
  if (text.starts_with("--")) text.erase(0, 2);
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.push_back(
        {fmt::format("{}: got `{}`, expected section.key=value", source.name, original),
         "Write for example model.n_kv_head=2"});
    return std::nullopt;
  }
  Override result{text.substr(0, equals), {}};
  const std::string value = text.substr(equals + 1);
  const auto& keys = all_keys();
  if (std::find(keys.begin(), keys.end(), result.key) == keys.end()) {
    problems.push_back(
        {source.name + ": " + unknown_key_text(result.key), suggest_key(result.key)});
    return std::nullopt;
  }
  const Source here{fmt::format("{}: {}", source.name, result.key), false};
  if (value.empty()) {
    // A shell has removed the quotes of key="".
    result.value.kind = YamlNode::Kind::kScalar;
    result.value.quoted = true;
    return result;
  }
  result.value = parse_yaml(value, here, problems);
  return result;
}

// Fills a Config field by field from the tree of the file, then from the overrides.
class Reader {
 public:
  Reader(const YamlNode& root, const Source& file, const std::vector<Override>& overrides,
         const Source& command_line, std::vector<Problem>& problems)
      : root_(root),
        file_(file),
        overrides_(overrides),
        command_line_(command_line),
        problems_(problems) {}

  template <class S>
  void section(std::string_view name, S& section, std::string_view) {
    section_ = name;
    node_ = section_node(name);
    known_.clear();
    visit_fields(section, *this);
    report_unknown_keys();
  }

  template <class T>
  void field(std::string_view name, T& value, const Rule& rule, std::string_view) {
    const std::string key = fmt::format("{}.{}", section_, name);
    known_.emplace_back(name);
    if (const YamlEntry* entry = node_ != nullptr ? node_->find(name) : nullptr) {
      assign(key, entry->value, file_.at(entry->line), rule, value);
    }
    for (const Override& given : overrides_) {
      if (given.key == key) assign(key, given.value, command_line_.name, rule, value);
    }
  }

  void report_unknown_sections() {
    for (const YamlEntry& entry : root_.entries) {
      const auto& sections = all_sections();
      if (std::find(sections.begin(), sections.end(), entry.key) != sections.end()) continue;
      problems_.push_back({fmt::format("{}: {}: unknown section; sections are {}",
                                       file_.at(entry.line), entry.key, fmt::join(sections, ", ")),
                           suggest_key(entry.key)});
    }
  }

  // Where the first of `keys` that was given stands: "run.yaml:4: ", or "".
  std::string origin(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      const auto it = origins_.find(key);
      if (it != origins_.end()) return it->second + ": ";
    }
    return {};
  }

 private:
  const YamlNode* section_node(std::string_view name) {
    const YamlEntry* entry = root_.find(name);
    if (entry == nullptr) return nullptr;
    const YamlNode& node = entry->value;
    if (node.kind == YamlNode::Kind::kMap) return &node;
    if (node.kind == YamlNode::Kind::kScalar || node.kind == YamlNode::Kind::kList) {
      const std::string got =
          node.kind == YamlNode::Kind::kList ? "a list" : fmt::format("`{}`", node.text);
      problems_.push_back({fmt::format("{}: {}: got {}, expected keys of this section",
                                       file_.at(entry->line), name, got),
                           "Write `key: value` lines below it, indented, with a space after the "
                           "colon"});
    }
    return nullptr;
  }

  void report_unknown_keys() {
    if (node_ == nullptr) return;
    for (const YamlEntry& entry : node_->entries) {
      if (std::find(known_.begin(), known_.end(), entry.key) != known_.end()) continue;
      const std::string key = section_ + "." + entry.key;
      problems_.push_back({file_.at(entry.line) + ": " + unknown_key_text(key), suggest_key(key)});
    }
  }

  template <class T>
  void assign(const std::string& key, const YamlNode& node, const std::string& at, const Rule& rule,
              T& value) {
    if (node.kind == YamlNode::Kind::kRefused) return;
    T parsed{};
    std::optional<Complaint> complaint = convert(node, parsed);
    if (!complaint) complaint = violation(parsed, rule);
    if (complaint) {
      problems_.push_back({fmt::format("{}: {}: got {}, expected {}", at, key, complaint->got,
                                       expectation(value, rule)),
                           complaint->remedy});
      return;
    }
    value = std::move(parsed);
    origins_[key] = at;
  }

  const YamlNode& root_;
  const Source& file_;
  const std::vector<Override>& overrides_;
  const Source& command_line_;
  std::vector<Problem>& problems_;
  std::string section_;
  const YamlNode* node_ = nullptr;
  std::vector<std::string> known_;
  std::map<std::string, std::string> origins_;
};

void require_mapping(const YamlNode& root, const Source& file) {
  if (root.kind == YamlNode::Kind::kMap || root.kind == YamlNode::Kind::kNull) return;
  const bool list = root.kind == YamlNode::Kind::kList;
  throw config_error(
      fmt::format("{}: got {}, expected a mapping with the sections {}", file.at(root.line),
                  list ? "a list" : "`" + root.text + "`", fmt::join(all_sections(), ", ")),
      "Write for example `model: {n_layer: 4}`, with a space after each colon");
}

bool is_yaml_file(const fs::directory_entry& entry) {
  std::error_code ignored;
  const std::string extension = entry.path().extension().string();
  return (extension == ".yaml" || extension == ".yml") && entry.is_regular_file(ignored);
}

// YAML files beside the missing `path`: the closest name, else a few of them.
std::string files_near(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_yaml_file(*it)) names.push_back(it->path().filename().string());
  }
  if (names.empty()) return fmt::format("There is no YAML file in {}", folder.string());
  std::sort(names.begin(), names.end());
  std::string near = nearest(path.filename().string(), names);
  if (near.empty()) near = nearest(path.filename().string() + ".yaml", names);
  if (!near.empty()) return fmt::format("Did you mean {}?", (path.parent_path() / near).string());
  if (names.size() > 5) names.resize(5);
  return fmt::format("{} has {}", folder.string(), fmt::join(names, ", "));
}

}  // namespace

Config parse_config(const std::string& text, const std::string& file_name,
                    const std::vector<std::string>& overrides) {
  const Source file{file_name};
  const Source command_line{"command line", false};
  std::vector<Problem> problems;
  const YamlNode root = parse_yaml(text, file, problems);
  require_mapping(root, file);
  std::vector<Problem> override_problems;
  std::vector<Override> parsed;
  for (const std::string& given : overrides) {
    if (auto result = parse_override(given, command_line, override_problems)) {
      parsed.push_back(std::move(*result));
    }
  }
  Config config;
  Reader reader(root, file, parsed, command_line, problems);
  reader.report_unknown_sections();
  visit_sections(config, reader);
  problems.insert(problems.end(), override_problems.begin(), override_problems.end());
  if (problems.empty()) {
    for (const ConfigConflict& conflict : find_conflicts(config)) {
      problems.push_back({reader.origin(conflict.keys) + conflict.message, conflict.remedy});
    }
  }
  if (!problems.empty()) throw to_error(problems);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    throw config_error(fmt::format("{} is a folder, expected a YAML file", path),
                       files_near(fs::path(path) / "run.yaml"));
  }
  if (!fs::exists(path, ignored)) {
    throw config_error(fmt::format("no configuration file {}", path), files_near(path));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) {
    throw config_error(fmt::format("cannot read the configuration file {}", path),
                       "Check its permissions");
  }
  return parse_config(text.str(), path, overrides);
}

}  // namespace heddle
