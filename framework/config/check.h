// What the limits of single fields cannot say: fields that must fit each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/config/config.h"

namespace heddle {

struct ConfigConflict {
  std::vector<std::string> keys;  // "model.n_head"; the ones to change first
  std::string message;            // names the fields and their values
  std::string remedy;
};

// Everything in `config` that cannot run: values outside the limits of fields.h and, when there
// are none of those, fields that contradict each other. Reads no file.
std::vector<ConfigConflict> find_conflicts(const Config& config);

// Throws a config error that lists find_conflicts(). parse_config() has done this already, with
// file and line; this is for configurations made or changed in code.
void check_config(const Config& config);

// Legal, but probably not meant; sentences to print before a run.
std::vector<std::string> config_warnings(const Config& config);

// Throws a config error when model.vocab_size is too small for the ids of the tokenizer, which
// `tokenizer_name` names. A larger one is fine: the ids above stay unused.
void check_vocab(const Config& config, int64_t tokenizer_vocab, const std::string& tokenizer_name);

}  // namespace heddle
