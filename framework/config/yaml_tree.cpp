#include "framework/config/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <string_view>

namespace heddle::config_internal {
namespace {

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const Source& source, std::vector<Problem>& problems)
      : source_(source), problems_(problems) {}

  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add(node_at(mark, YamlNode::Kind::kNull));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    YamlNode node = node_at(mark, YamlNode::Kind::kRefused);
    if (!inside_refused_entry()) {
      report(node.line, where() + "YAML aliases (*name) are not supported", "Write the value out");
    }
    add(std::move(node));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    YamlNode node = node_at(mark, YamlNode::Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  // A list or map whose end has not been seen.
  struct Frame {
    YamlNode node;
    YamlNode key;
    bool has_key = false;
    bool drop_entry = false;  // the key was refused: so is its value
  };

  static YamlNode node_at(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    return node;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlNode::Kind kind) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    frames_.push_back({node_at(mark, kind), {}, false, false});
  }

  void close() {
    YamlNode node = std::move(frames_.back().node);
    frames_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node.kind == YamlNode::Kind::kList) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.has_key) {
      frame.drop_entry = !accept_key(frame, node);
      frame.key = std::move(node);
      frame.has_key = true;
    } else {
      if (!frame.drop_entry) {
        frame.node.entries.push_back({frame.key.text, frame.key.line, std::move(node)});
      }
      frame.has_key = false;
      frame.drop_entry = false;
    }
  }

  bool accept_key(const Frame& frame, const YamlNode& key) {
    if (key.kind != YamlNode::Kind::kScalar) {
      report(key.line, where() + "a key must be a plain word", "Write `key: value`");
      return false;
    }
    if (key.text == "<<") {
      report(key.line, where() + "`<<` does not merge mappings here", "Write the keys out");
      return false;
    }
    if (const YamlEntry* first = frame.node.find(key.text)) {
      report(key.line,
             fmt::format("{}{} is given twice, first at {}", path(), key.text,
                         source_.at(first->line)),
             "Keep one of them");
      return false;
    }
    return true;
  }

  bool inside_refused_entry() const {
    return std::any_of(frames_.begin(), frames_.end(),
                       [](const Frame& frame) { return frame.drop_entry; });
  }

  // "model." inside the value of `model`.
  std::string path() const {
    std::string text;
    for (const Frame& frame : frames_) {
      if (frame.has_key) text += frame.key.text + ".";
    }
    return text;
  }

  // "model: ", or "" at the top.
  std::string where() const {
    std::string text = path();
    if (!text.empty()) text.replace(text.size() - 1, 1, ": ");
    return text;
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor == 0) return;
    report(mark.line + 1, "YAML anchors (&name) are not supported",
           "Remove the anchor and write values out where they are used");
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    report(mark.line + 1, fmt::format("YAML tags are not supported, got {}", tag),
           "Remove the tag: the key decides the type of its value");
  }

  void report(int line, const std::string& text, const std::string& remedy) {
    problems_.push_back({source_.at(line) + ": " + text, remedy});
  }

  const Source& source_;
  std::vector<Problem>& problems_;
  std::vector<Frame> frames_;
  YamlNode root_;
};

// Counts documents and remembers where each starts.
class DocumentCounter : public TreeBuilder {
 public:
  using TreeBuilder::TreeBuilder;
  void OnDocumentStart(const YAML::Mark& mark) override { start_line_ = mark.line + 1; }
  int start_line() const { return start_line_; }

 private:
  int start_line_ = 1;
};

std::string line_of(const std::string& text, int number) {
  std::istringstream lines(text);
  std::string line;
  for (int i = 0; i < number && std::getline(lines, line); ++i) {
  }
  return line;
}

Error syntax_error(const YAML::Exception& e, const std::string& text, const Source& source) {
  if (e.mark.is_null()) return config_error(source.name + ": not valid YAML: " + e.msg);
  const int line = e.mark.line + 1;
  const std::string content = line_of(text, line);
  const std::string indent = content.substr(0, content.find_first_not_of(" \t"));
  std::string remedy = "Check the indentation, quotes and brackets there and just above";
  if (indent.find('\t') != std::string::npos) {
    remedy = "The line is indented with a tab: indent with spaces";
  }
  return config_error(
      fmt::format("{}: not valid YAML, column {}: {}", source.at(line), e.mark.column + 1, e.msg),
      remedy);
}

}  // namespace

const YamlEntry* YamlNode::find(std::string_view key) const {
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const YamlEntry& entry) { return entry.key == key; });
  return it == entries.end() ? nullptr : &*it;
}

YamlNode parse_yaml(const std::string& text, const Source& source, std::vector<Problem>& problems) {
  if (text.find('\0') != std::string::npos) {
    throw config_error(source.name + ": not a text file, it contains zero bytes",
                       "Name a YAML file such as configs/runs/recall_cpu.yaml");
  }
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    TreeBuilder first(source, problems);
    if (!parser.HandleNextDocument(first)) return {};
    std::vector<Problem> unused;
    DocumentCounter second(source, unused);
    if (parser.HandleNextDocument(second)) {
      throw config_error(
          source.at(second.start_line()) + ": a second YAML document starts here, expected one",
          "Remove the `---` line or split the file");
    }
    return first.take_root();
  } catch (const YAML::Exception& e) {
    throw syntax_error(e, text, source);
  }
}

}  // namespace heddle::config_internal
