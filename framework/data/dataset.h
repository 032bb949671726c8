// Training and validation data as sequences of one length. What a sequence holds depends on its
// index and on the configuration alone, never on ranks or on what was read before.
//
// Recall: a sequence is one generated story (recall.h).
// Text and jsonl: a split is a stream of byte tokens with a bos before each document. Sequence i
// covers the T tokens from 1 + i T on, behind a bos: tokens = bos, s[1 + i T] ... and targets =
// s[1 + i T] ... s[(i + 1) T]. So every text token is a target once an epoch and every window
// starts with bos. Tokens (llm.c shards): the same windows, but the token before the window stands
// first instead of bos: tokens = s[i T] ..., targets = s[i T + 1] ... s[(i + 1) T]. Shards that
// heddle tokenize wrote are read as text. Windows lie within a shard; a rest of less than T tokens
// at its end is not used.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "framework/config/config.h"
#include "framework/data/data_files.h"
#include "framework/data/recall.h"
#include "framework/data/tokenizer.h"

namespace heddle {

// Number of sequences of a generated corpus.
inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// Every method is const in effect too: any thread may call any of them at any time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual DataKind kind() const = 0;
  virtual int64_t sequence_len() const = 0;
  // Distinct training sequences, at least 1; kUnbounded for recall.
  virtual int64_t train_sequences() const = 0;
  // Global sample index = step * global batch + i. Each epoch of train_sequences() indices reads
  // every sequence once, in an order that depends on data.seed and the epoch. `tokens` and
  // `targets` take sequence_len() ids each. Throws heddle::Error naming the shard when an id is not
  // below the vocabulary.
  virtual void train_sequence(int64_t global_index, int32_t* tokens, int32_t* targets) const = 0;
  // 0 when there is no validation data; kUnbounded for recall. Read in the order of the file.
  virtual int64_t val_sequences() const = 0;
  virtual void val_sequence(int64_t i, int32_t* tokens, int32_t* targets) const = 0;

  virtual const Tokenizer& tokenizer() const = 0;
  // Absent for shards of other tools: model.vocab_size has to be given then.
  virtual std::optional<int64_t> vocab_size() const = 0;
  // One line for people.
  virtual std::string describe() const = 0;
  // 16 hex digits that change with the data, the split, the order or the sequence length: a resumed
  // run must find the same.
  virtual std::string fingerprint() const = 0;
  // The generator, when this is the recall corpus.
  virtual const RecallCorpus* recall() const { return nullptr; }
};

// Opens what `config` names, for sequences of `sequence_len` tokens. Text is tokenised into
// data.cache_dir first, or found there. `vocab_size`: model.vocab_size where it is given; ids that
// are not below it are errors. Throws heddle::Error, see docs/errors.md.
std::unique_ptr<Dataset> open_dataset(const DataConfig& config, int64_t sequence_len,
                                      std::optional<int64_t> vocab_size = {});

// The tokenizer and the vocabulary that open_dataset() will find, without reading more than headers
// of shards: for checks before any data are read.
struct DataVocabulary {
  std::shared_ptr<Tokenizer> tokenizer;
  std::optional<int64_t> vocab_size;
};
DataVocabulary data_vocabulary(const DataConfig& config);

// The part of `count` things that a rank takes: contiguous, parts differ by at most one and the
// first ranks have the larger ones (8 on 3 ranks: 3, 3, 2).
struct Share {
  int64_t begin, count;
};
Share rank_share(int64_t count, int rank, int world);

}  // namespace heddle
