#include "framework/data/documents.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/core/error.h"
#include "framework/core/json.h"
#include "framework/data/token_shard.h"

namespace heddle {
namespace {

using Visit = std::function<void(std::string_view)>;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos;
}

// Calls visit(line, begin) without the line break; `begin` is where the line starts in `text`.
template <class LineVisit>
void for_each_line(std::string_view text, LineVisit&& visit) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    visit(text.substr(begin, end - begin), begin);
    begin = end + 1;
  }
}

void paragraphs(std::string_view text, const Visit& visit) {
  constexpr size_t kNone = std::string_view::npos;
  size_t first = kNone, last = 0;  // the paragraph is text[first, last)
  const auto flush = [&] {
    if (first != kNone) visit(text.substr(first, last - first));
    first = kNone;
  };
  for_each_line(text, [&](std::string_view line, size_t begin) {
    if (is_blank(line)) return flush();
    if (first == kNone) first = begin;
    last = begin + line.size();
    if (line.back() == '\r') --last;
  });
  flush();
}

void json_lines(const std::string& path, std::string_view text, const Visit& visit) {
  int64_t number = 0;
  for_each_line(text, [&](std::string_view line, size_t) {
    ++number;
    if (is_blank(line)) return;
    const auto fail = [&](const std::string& what) {
      throw environment_error("data", fmt::format("{}:{}: {}", path, number, what),
                              "write one object a line, such as {\"text\": \"Once upon a time\"}");
    };
    boost::system::error_code ec;
    const json::value value = json::parse({line.data(), line.size()}, ec);
    if (ec) fail("not valid JSON (" + ec.message() + "), expected an object");
    const json::object* object = value.if_object();
    if (object == nullptr) fail("the line is not an object");
    const json::value* field = object->if_contains("text");
    if (field == nullptr) fail("the object has no field \"text\"");
    const auto* document = field->if_string();
    if (document == nullptr) fail("\"text\" is not a string");
    if (!document->empty()) visit({document->data(), document->size()});
  });
}

}  // namespace

void for_each_document(const TextFiles& files, const Visit& visit) {
  for (const std::string& path : files.paths) {
    const MappedFile file = map_data_file(path);
    const std::string_view text = file.text();
    switch (files.format) {
      case TextFormat::kFile:
        if (!text.empty()) visit(text);
        break;
      case TextFormat::kParagraph:
        paragraphs(text, visit);
        break;
      case TextFormat::kJsonl:
        json_lines(path, text, visit);
        break;
    }
  }
}

}  // namespace heddle
