#include "framework/data/recall.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "framework/core/error.h"
#include "framework/core/rng.h"
#include "framework/data/recall_words.h"

namespace heddle {
namespace {

namespace rw = recall_words;

constexpr int64_t kSentence = 4;
constexpr int64_t kShortest = 16;
constexpr float kNewFact = 0.9f;
constexpr int kAsked = 2;

int64_t longest_distance(int64_t sequence_len) {
  return sequence_len * 9 / 10;
}

struct Fact {
  int32_t name, value;
  int64_t last = 0;  // position of the name's last mention
  int64_t due = 0;
  int left = kAsked;  // recalls still to come
};

// One story in the making.
class Writer {
 public:
  Writer(Rng rng, int64_t sequence_len, int32_t* tokens)
      : rng_(rng),
        tokens_(tokens),
        size_(sequence_len + 1),
        longest_(longest_distance(sequence_len)) {
    for (int32_t i = 0; i < rw::kNames; ++i) names_[static_cast<size_t>(i)] = rw::kFirstName + i;
  }

  void write(std::vector<Recall>* recalls) {
    tokens_[0] = rw::kBos;
    for (int64_t start = 1; start < size_; start += kSentence) {
      start_ = start;
      if (Fact* fact = pick_due(); fact != nullptr) {
        recall(*fact, recalls);
      } else if (used_ < rw::kNames && rng_.uniform() < kNewFact) {
        state();
      } else {
        fill();
      }
    }
  }

 private:
  int64_t name_position() const { return start_ + 1; }

  Fact* pick_due() {
    std::array<Fact*, rw::kNames> due;
    uint32_t n = 0;
    for (Fact& fact : std::span(facts_).first(static_cast<size_t>(used_))) {
      if (name_position() - fact.last > longest_) fact.left = 0;
      if (fact.left > 0 && fact.due <= name_position()) due[n++] = &fact;
    }
    return n > 0 ? due[rng_.below(n)] : nullptr;
  }

  void schedule(Fact& fact) {
    const double u = rng_.uniform();
    const double distance = 4.0 * std::pow(static_cast<double>(longest_) / 4.0, u);
    fact.last = name_position();
    fact.due = fact.last + static_cast<int64_t>(distance);
  }

  void state() {
    // A name not used before: the next of a shuffle that is made as it is needed.
    const auto chosen = used_ + rng_.below(static_cast<uint32_t>(rw::kNames - used_));
    std::swap(names_[static_cast<size_t>(used_)], names_[chosen]);
    Fact& fact = facts_[static_cast<size_t>(used_)];
    fact = {.name = names_[static_cast<size_t>(used_)],
            .value = rw::kFirstValue + static_cast<int32_t>(rng_.below(rw::kValues))};
    ++used_;
    schedule(fact);
    emit(rw::kFactLead, fact.name, fact.value);
  }

  void recall(Fact& fact, std::vector<Recall>* recalls) {
    if (recalls != nullptr && name_position() + 1 < size_) {
      recalls->push_back({static_cast<int32_t>(name_position()),
                          static_cast<int32_t>(name_position() - fact.last), fact.value});
    }
    --fact.left;
    schedule(fact);
    emit(rw::kRecallLead, fact.name, fact.value);
  }

  void fill() {
    const auto first = static_cast<int32_t>(rng_.below(4));
    const auto branch = static_cast<int32_t>(rng_.below(4));
    const auto choice = static_cast<int32_t>(rng_.below(4));
    emit(rw::kFillerFirst + first, rw::kFillerSecond + 4 * branch + first,
         rw::kFillerThird + 4 * branch + choice);
  }

  void emit(int32_t a, int32_t b, int32_t c) {
    const int32_t sentence[kSentence] = {a, b, c, rw::kStop};
    std::copy_n(sentence, std::min(kSentence, size_ - start_), tokens_ + start_);
  }

  Rng rng_;
  int32_t* tokens_;
  int64_t size_, longest_, start_ = 0;
  std::array<int32_t, rw::kNames> names_{};
  std::array<Fact, rw::kNames> facts_{};
  int32_t used_ = 0;
};

// 32, 64, 96, 128, 192, 256, 384, ...: powers of two and the middles between them.
std::vector<int64_t> bucket_ends(int64_t longest) {
  std::vector<int64_t> ends;
  for (int64_t power = 32; power < longest; power *= 2) {
    ends.push_back(power);
    if (power >= 64 && power * 3 / 2 < longest) ends.push_back(power * 3 / 2);
  }
  ends.push_back(longest);
  // The last bucket holds a distance of its own only if a multiple of 4 lies in it.
  if (ends.size() > 1 && ends.back() < ends[ends.size() - 2] + kSentence) ends.pop_back();
  return ends;
}

}  // namespace

RecallCorpus::RecallCorpus(uint64_t seed, int64_t sequence_len)
    : seed_(seed), sequence_len_(sequence_len) {
  if (sequence_len < kShortest) {
    throw Error(
        ExitCode::kConfig, "data",
        fmt::format("a recall story of {} tokens has no room for facts, expected at least {}",
                    sequence_len, kShortest),
        fmt::format("set model.sequence_len={} or more", kShortest));
  }
}

int64_t RecallCorpus::max_distance() const {
  return longest_distance(sequence_len_);
}

void RecallCorpus::story(Split split, int64_t index, int32_t* tokens,
                         std::vector<Recall>* recalls) const {
  if (recalls != nullptr) recalls->clear();
  std::array<char, 48> stream;
  const auto end = fmt::format_to(stream.begin(), "recall/{}/{}",
                                  split == Split::kTrain ? "train" : "val", index);
  const std::string_view name(stream.data(), static_cast<size_t>(end - stream.begin()));
  Writer(Rng(seed_, name), sequence_len_, tokens).write(recalls);
}

RecallTable::RecallTable(int64_t sequence_len) {
  int64_t from = kSentence;
  for (const int64_t to : bucket_ends(longest_distance(sequence_len))) {
    buckets_.push_back({.from = from, .to = to});
    from = to / kSentence * kSentence + kSentence;
  }
}

void RecallTable::add(int64_t distance, bool correct) {
  for (Bucket& bucket : buckets_) {
    if (distance > bucket.to) continue;
    bucket.correct += correct ? 1 : 0;
    ++bucket.total;
    return;
  }
}

void RecallTable::merge(const RecallTable& other) {
  HEDDLE_CHECK(buckets_.size() == other.buckets_.size(), "tables of different sequence lengths");
  for (size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i].correct += other.buckets_[i].correct;
    buckets_[i].total += other.buckets_[i].total;
  }
}

std::vector<int64_t> RecallTable::counts() const {
  std::vector<int64_t> out;
  for (const Bucket& bucket : buckets_) out.insert(out.end(), {bucket.correct, bucket.total});
  return out;
}

void RecallTable::set_counts(std::span<const int64_t> counts) {
  HEDDLE_CHECK(counts.size() == 2 * buckets_.size(), "counts of another table");
  for (size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i].correct = counts[2 * i];
    buckets_[i].total = counts[2 * i + 1];
  }
}

std::string RecallTable::text() const {
  std::string head = "distance ", accuracy = "recall   ", total = "asked    ";
  for (const Bucket& bucket : buckets_) {
    const std::string range = fmt::format("{}-{}", bucket.from, bucket.to);
    const size_t width = std::max<size_t>(range.size(), 6) + 2;
    head += fmt::format("{:>{}}", range, width);
    accuracy += bucket.total > 0 ? fmt::format("{:>{}.3f}", bucket.accuracy(), width)
                                 : fmt::format("{:>{}}", "-", width);
    total += fmt::format("{:>{}}", bucket.total, width);
  }
  return fmt::format("{}\n{}   (chance {:.4f})\n{}\n", head, accuracy, kRecallChance, total);
}

std::vector<int64_t> recall_eval_stories(const RecallCorpus& corpus, int64_t per_bucket) {
  RecallTable table(corpus.sequence_len());
  std::vector<int32_t> tokens(static_cast<size_t>(corpus.sequence_len()) + 1);
  std::vector<Recall> recalls;
  std::vector<int64_t> chosen;
  const auto is_short = [&](int64_t distance) {
    for (const auto& bucket : table.buckets()) {
      if (distance <= bucket.to) return bucket.total < per_bucket;
    }
    return false;
  };
  const auto complete = [&] {
    return std::all_of(table.buckets().begin(), table.buckets().end(),
                       [&](const auto& bucket) { return bucket.total >= per_bucket; });
  };
  for (int64_t i = 0; i < 100 * per_bucket && !complete(); ++i) {
    corpus.story(Split::kVal, i, tokens.data(), &recalls);
    const bool useful = std::any_of(recalls.begin(), recalls.end(), [&](const Recall& recall) {
      return is_short(recall.distance);
    });
    if (!useful) continue;
    chosen.push_back(i);
    for (const Recall& recall : recalls) table.add(recall.distance, false);
  }
  return chosen;
}

}  // namespace heddle
