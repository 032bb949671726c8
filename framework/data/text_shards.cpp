#include "framework/data/text_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "framework/core/error.h"
#include "framework/core/file.h"
#include "framework/data/token_shard.h"
#include "framework/data/tokenizer.h"

namespace heddle {
namespace {

[[noreturn]] void text_changed() {
  throw environment_error("data", "the text changed while it was read",
                          "start again once nothing writes to data.path");
}

// Spreads one split over shards of nearly equal size, whose number is known beforehand.
class SplitWriter {
 public:
  SplitWriter(WrittenSplit& split, std::string stem, int64_t shard_tokens)
      : split_(split),
        stem_(std::move(stem)),
        tokenizer_(make_tokenizer("bytes")),
        tokens_(split.bytes + split.documents),
        count_((tokens_ + shard_tokens - 1) / shard_tokens) {}

  void append(std::string_view document) {
    push(static_cast<uint16_t>(tokenizer_->bos()));
    for (const char c : document) push(static_cast<unsigned char>(c));
  }
  void finish() const {
    if (static_cast<int64_t>(split_.shards.size()) != count_) text_changed();
  }

 private:
  void push(uint16_t id) {
    if (writer_ == nullptr) open_shard();
    buffer_[used_++] = id;
    --left_;
    if (left_ > 0 && used_ < buffer_.size()) return;
    writer_->append(std::span(buffer_).first(used_));
    used_ = 0;
    if (left_ == 0) close_shard();
  }

  void open_shard() {
    const auto i = static_cast<int64_t>(split_.shards.size());
    if (i == count_) text_changed();
    left_ = tokens_ * (i + 1) / count_ - tokens_ * i / count_;
    shard_ = {.path = fmt::format("{}_{:06}.bin", stem_, i), .tokens = left_};
    writer_ = std::make_unique<TokenShardWriter>(shard_.path, left_, tokenizer_->name(),
                                                 tokenizer_->vocab_size());
  }

  void close_shard() {
    writer_->close();
    shard_.crc = writer_->payload_crc();
    split_.shards.push_back(shard_);
    writer_.reset();
  }

  WrittenSplit& split_;
  std::string stem_;
  std::shared_ptr<Tokenizer> tokenizer_;
  int64_t tokens_, count_, left_ = 0;
  WrittenShard shard_;
  std::unique_ptr<TokenShardWriter> writer_;
  std::array<uint16_t, 1 << 15> buffer_;
  size_t used_ = 0;
};

// Bytes of `files` that belong to training: all of them, or all but the validation tail.
int64_t train_bytes(const TextSources& sources) {
  int64_t bytes = 0;
  for_each_document(sources.train,
                    [&](std::string_view text) { bytes += static_cast<int64_t>(text.size()); });
  if (bytes == 0) {
    const auto& paths = sources.train.paths;
    throw environment_error(
        "data",
        fmt::format(
            "{}{} no text: the data are empty", paths.front(),
            paths.size() > 1 ? fmt::format(" and {} more hold", paths.size() - 1) : " holds"),
        "set data.path to a file with text in it");
  }
  if (sources.val.has_value()) return bytes;
  // The product of a decimal fraction and a whole number may lie a rounding above the whole number
  // that is meant.
  const double tail = std::ceil(sources.val_fraction * static_cast<double>(bytes) - 1e-6);
  return bytes - static_cast<int64_t>(tail);
}

// Calls train(text) and val(text) for the parts of each document on either side of the cut.
template <class Train, class Val>
void for_each_part(const TextSources& sources, int64_t cut, Train&& train, Val&& val) {
  int64_t at = 0;
  for_each_document(sources.train, [&](std::string_view text) {
    const auto size = static_cast<int64_t>(text.size());
    const auto head = static_cast<size_t>(std::clamp(cut - at, int64_t{0}, size));
    if (head > 0) train(text.substr(0, head));
    if (head < text.size()) val(text.substr(head));
    at += size;
  });
  if (sources.val.has_value()) for_each_document(*sources.val, val);
}

auto counter(WrittenSplit& split) {
  return [&split](std::string_view text) {
    ++split.documents;
    split.bytes += static_cast<int64_t>(text.size());
  };
}

}  // namespace

WrittenText write_text_shards(const TextSources& sources, const std::string& folder,
                              const std::string& prefix, int64_t shard_tokens) {
  WrittenText out;
  const int64_t cut = train_bytes(sources);
  for_each_part(sources, cut, counter(out.train), counter(out.val));
  if (sources.val.has_value() && out.val.bytes == 0) {
    throw environment_error("data", sources.val->paths.front() + " holds no text",
                            "set data.val_path to a file with text in it, or leave it out");
  }
  file_system().create_directories(folder);
  const std::string stem = folder + "/" + prefix;
  SplitWriter train(out.train, stem + "train", shard_tokens);
  SplitWriter val(out.val, stem + "val", shard_tokens);
  for_each_part(
      sources, cut, [&](std::string_view text) { train.append(text); },
      [&](std::string_view text) { val.append(text); });
  train.finish();
  val.finish();
  return out;
}

}  // namespace heddle
