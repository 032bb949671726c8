// Text to token ids and back. A tokenizer is found again by its name, which checkpoints store.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // make_tokenizer(name()) makes an equal one.
  virtual std::string name() const = 0;
  // Ids are 0 .. vocab_size() - 1; 0 when only the model knows ("ids").
  virtual int64_t vocab_size() const = 0;
  // The id that stands before every document, or -1.
  virtual int32_t bos() const = 0;
  // Ids of `text`, without bos. Throws heddle::Error (config) naming what it cannot read.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // An inner bos reads as a line break, one at the start or the end as nothing. The text of a
  // prefix of `ids` that does not end in bos is a prefix of the text, so output can be streamed.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // Bytes of text that the id stands for; 0 for bos and other marks that are not text.
  virtual int token_bytes(int32_t id) const = 0;
  // False when token_bytes() is 0 throughout because nobody knows: there is no bits per byte then.
  virtual bool knows_bytes() const { return true; }
};

// "bytes": ids 0..255 are the byte, 256 is bos; vocabulary 257; any input is valid.
// "recall": the words of the embedded corpus (recall_words.h), vocabulary 147.
// "ids" or "ids:BOS": token shards without a tokenizer; text is decimal ids between spaces.
// Throws heddle::Error (config) for another name.
std::shared_ptr<Tokenizer> make_tokenizer(std::string_view name);

}  // namespace heddle
