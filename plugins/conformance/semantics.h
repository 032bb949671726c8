// Attention as people get it wrong: a model of the definition with one thing changed, and the list
// of changes that are known from bug reports. What a wrong result matches is what its author did.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plugins/conformance/arrays.h"

namespace heddle::conformance {

enum class GroupSum { kAll, kFirst, kLast, kMean };

struct Semantics {
  std::string words;  // "window_left counts the row itself too: ..."
  // Empty functions: as the header says.
  std::function<bool(const Case&, int64_t b, int64_t i, int64_t j)> visible;
  std::function<int64_t(const Case&, int64_t h)> kv_head;
  std::function<double(const Case&)> scale;           // of the scores
  std::function<double(double lse, double top)> lse;  // from the right one and the largest score
  double empty_lse = -1.0 / 0.0;
  bool uniform_when_empty = false;  // a row without keys takes the mean of all
  bool any_lse = false;             // lse says nothing about this mistake
  bool hidden_as_zero = false;      // hidden keys take part with a score of 0
  bool normalised = true;
  bool first_batch_row = false;  // keys and values always from batch row 0
  // Backward.
  double dq_factor = 1.0, dk_factor = 1.0;
  bool delta = true;
  bool swap_dk_dv = false;
  GroupSum group = GroupSum::kAll;
  int64_t dq_skips_keys[2] = {0, 0};  // [begin, end) that dq does not get
  int64_t dk_skips_rows[2] = {0, 0};  // [begin, end) of queries that dk and dv do not get
};

// Whether the header lets row i of batch row b see key j; the model's own rule.
bool visible_by_header(const Case& c, int64_t b, int64_t i, int64_t j);

// Results of the case's operation under changed semantics, in fp64.
Exact model_results(const Case& c, const Arrays& inputs, const Semantics& semantics);

// The known mistakes that can matter for this case.
std::vector<Semantics> known_mistakes(const Case& c);

}  // namespace heddle::conformance
