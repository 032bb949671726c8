// heddle tokenize: text into token shards that heddle and llm.c read.
#pragma once

#include <string>

namespace heddle {

struct TokenizeOptions {
  std::string input;              // as data.path: .txt or .jsonl, or a folder of such
  std::string out;                // folder for the shards, made if it is missing
  std::string val_input;          // as data.val_path
  std::string kind = "auto";      // as data.kind
  std::string document = "file";  // as data.document
  double val_fraction = 0.05;     // as data.val_fraction
};

// Writes NAME_train_000000.bin ... and NAME_val_000000.bin ... (NAME: input without folder and
// ending), prints what they hold to stdout and returns 0. Throws heddle::Error.
int run_tokenize(const TokenizeOptions& options);

}  // namespace heddle
