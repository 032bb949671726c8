// What text files hold: a stream of documents.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

enum class TextFormat {
  kFile,       // .txt, a file is a document
  kParagraph,  // .txt, blank lines separate documents; a document ends without its line break
  kJsonl,      // .jsonl, one object a line, its string field "text" is a document
};

struct TextFiles {
  TextFormat format = TextFormat::kFile;
  std::vector<std::string> paths;  // read in this order
};

// Calls visit(document) for every document that is not empty, in order. Bytes are passed on as they
// are. Throws heddle::Error (environment) naming file and line for a .jsonl line that is not an
// object with a string "text"; blank lines are skipped.
void for_each_document(const TextFiles& files, const std::function<void(std::string_view)>& visit);

}  // namespace heddle
