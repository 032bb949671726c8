#include "framework/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "framework/core/error.h"
#include "framework/data/recall_words.h"

namespace heddle {
namespace {

Error data_error(std::string message, std::string remedy) {
  return {ExitCode::kConfig, "data", std::move(message), std::move(remedy)};
}

// Calls visit(word) for each piece of `text` between white space.
template <class Visit>
void for_each_word(std::string_view text, Visit&& visit) {
  size_t begin = 0;
  while (begin < text.size()) {
    while (begin < text.size() && std::isspace(static_cast<unsigned char>(text[begin]))) ++begin;
    size_t end = begin;
    while (end < text.size() && !std::isspace(static_cast<unsigned char>(text[end]))) ++end;
    if (end > begin) visit(text.substr(begin, end - begin));
    begin = end;
  }
}

class BytesTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256;

  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return 257; }
  int32_t bos() const override { return kBos; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    std::transform(text.begin(), text.end(), ids.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool document_ended = false;
    for (const int32_t id : ids) {
      if (id < 0 || id >= kBos) {
        document_ended = true;
        continue;
      }
      if (document_ended && !text.empty()) text += '\n';
      document_ended = false;
      text += static_cast<char>(id);
    }
    return text;
  }
  int token_bytes(int32_t id) const override { return id >= 0 && id < kBos ? 1 : 0; }
};

class RecallTokenizer : public Tokenizer {
 public:
  RecallTokenizer() {
    namespace rw = recall_words;
    for (int32_t id = rw::kStop; id < rw::kVocabulary; ++id) {
      ids_.emplace(lower(rw::kText[static_cast<size_t>(id)]), id);
    }
  }

  std::string name() const override { return "recall"; }
  int64_t vocab_size() const override { return recall_words::kVocabulary; }
  int32_t bos() const override { return recall_words::kBos; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for_each_word(text, [&](std::string_view word) {
      std::string_view stem = word;
      while (!stem.empty() && is_mark(stem.back())) stem.remove_suffix(1);
      if (!stem.empty()) ids.push_back(find(stem));
      for (const char c : word.substr(stem.size())) ids.push_back(find({&c, 1}));
    });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool story_ended = false;
    for (const int32_t id : ids) {
      if (!is_text(id)) {
        story_ended = true;
        continue;
      }
      const bool mark = id == recall_words::kStop || id == recall_words::kMark;
      if (!text.empty() && (story_ended || !mark)) text += story_ended ? '\n' : ' ';
      story_ended = false;
      text += recall_words::kText[static_cast<size_t>(id)];
    }
    return text;
  }

  // A word counts with the space before it.
  int token_bytes(int32_t id) const override {
    if (!is_text(id)) return 0;
    const bool mark = id == recall_words::kStop || id == recall_words::kMark;
    return static_cast<int>(recall_words::kText[static_cast<size_t>(id)].size()) + (mark ? 0 : 1);
  }

 private:
  static bool is_text(int32_t id) {
    return id > recall_words::kBos && id < recall_words::kVocabulary;
  }
  static bool is_mark(char c) { return c == '.' || c == '?'; }
  static std::string lower(std::string_view word) {
    std::string out(word);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
  }
  int32_t find(std::string_view word) const {
    const auto it = ids_.find(lower(word));
    if (it != ids_.end()) return it->second;
    throw data_error(
        fmt::format("the recall corpus has no word \"{}\"", word),
        "use its words: names as possessives (Ada's, Ben's), colours (red, blue), the leads here "
        "and saw, filler such as \"old rain falls.\"; for example: here Ada's red. saw Ada's");
  }

  std::unordered_map<std::string, int32_t> ids_;
};

class IdsTokenizer : public Tokenizer {
 public:
  explicit IdsTokenizer(int32_t bos) : bos_(bos) {}

  std::string name() const override { return bos_ < 0 ? "ids" : fmt::format("ids:{}", bos_); }
  int64_t vocab_size() const override { return 0; }
  int32_t bos() const override { return bos_; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for_each_word(text, [&](std::string_view word) { ids.push_back(parse(word)); });
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool document_ended = false;
    for (const int32_t id : ids) {
      if (id == bos_) {
        document_ended = true;
        continue;
      }
      if (!text.empty()) text += document_ended ? '\n' : ' ';
      document_ended = false;
      text += std::to_string(id);
    }
    return text;
  }
  int token_bytes(int32_t) const override { return 0; }
  bool knows_bytes() const override { return false; }

  static int32_t parse(std::string_view word) {
    int32_t id = -1;
    const auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (ec != std::errc() || end != word.data() + word.size() || id < 0) {
      throw data_error(fmt::format("\"{}\" is not a token id; the data are token shards without a "
                                   "tokenizer, expected whole numbers from 0 to {}",
                                   word, std::numeric_limits<int32_t>::max()),
                       "write ids with spaces between them, such as \"464 2068 7586\"");
    }
    return id;
  }

 private:
  int32_t bos_;
};

}  // namespace

std::shared_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  if (name == "bytes") return std::make_shared<BytesTokenizer>();
  if (name == "recall") return std::make_shared<RecallTokenizer>();
  if (name == "ids") return std::make_shared<IdsTokenizer>(-1);
  if (name.starts_with("ids:")) {
    return std::make_shared<IdsTokenizer>(IdsTokenizer::parse(name.substr(4)));
  }
  throw data_error(fmt::format("unknown tokenizer \"{}\"", name),
                   "expected bytes, recall, ids or ids:BOS");
}

}  // namespace heddle
