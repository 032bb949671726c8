// The embedded corpus: short stories in which facts are stated and asked for again at controlled
// distances. A sentence has four tokens:
//   fact    here NAME VALUE .    a new name, a value drawn evenly from 16
//   recall  saw NAME VALUE .     the same value again; each fact is asked for at most twice
//   filler  FIRST SECOND THIRD . one of 64 equally likely sentences
// A recall falls due at a distance drawn log-uniformly from [4, 0.9 T] after the name's last
// mention. A sentence is a due recall if there is one (any of them), else a new fact with
// probability 0.9 while names remain, else filler. A recall that other due ones have delayed beyond
// 0.9 T is never asked, so all distances are multiples of 4 up to 0.9 T. A story is bos and T
// tokens; story i of a split is a pure function of (seed, split, i, T).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle {

enum class Split { kTrain, kVal };

struct Recall {
  int32_t position;     // index of the NAME among the story's tokens; its target is the value
  int32_t distance;     // tokens from that name's last mention, fact or recall
  int32_t value_token;  // what a model that remembers predicts at `position`
};

inline constexpr double kRecallChance = 1.0 / 16;

class RecallCorpus {
 public:
  // sequence_len: T, at least 16 (Error (config) otherwise).
  RecallCorpus(uint64_t seed, int64_t sequence_len);

  int64_t sequence_len() const { return sequence_len_; }
  // The longest distance in a story: floor(0.9 T).
  int64_t max_distance() const;
  // Writes T + 1 tokens; tokens[0] is bos. `recalls`, when given, is replaced by the recalls whose
  // value lies in the story, by position.
  void story(Split split, int64_t index, int32_t* tokens, std::vector<Recall>* recalls) const;

 private:
  uint64_t seed_;
  int64_t sequence_len_;
};

// Right answers by distance. Buckets end at 32, 64, 96, 128, 192, 256, 384, 512, ... (no bucket
// straddles a window of that size: a distance equal to the window is visible) and at 0.9 T.
class RecallTable {
 public:
  struct Bucket {
    int64_t from, to;  // distances, both included
    int64_t correct = 0, total = 0;
    double accuracy() const { return total > 0 ? static_cast<double>(correct) / total : 0.0; }
  };

  explicit RecallTable(int64_t sequence_len);

  void add(int64_t distance, bool correct);
  void merge(const RecallTable& other);
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // (correct, total) of each bucket, to be summed over ranks and set again.
  std::vector<int64_t> counts() const;
  void set_counts(std::span<const int64_t> counts);
  // One line of distances and one of accuracies with totals, chance at the end.
  std::string text() const;

 private:
  std::vector<Bucket> buckets_;
};

// Validation stories that together hold at least `per_bucket` recalls of every distance bucket, in
// rising order: story i is taken when it has a recall of a bucket that is still short. For T 256,
// seed 1 and 1,000 a bucket they are 1,160 of the first 2,392 stories. Gives up, with what it has,
// after 100 * per_bucket stories.
std::vector<int64_t> recall_eval_stories(const RecallCorpus& corpus, int64_t per_bucket);

}  // namespace heddle
