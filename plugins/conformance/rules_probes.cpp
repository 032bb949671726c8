// Exact-count probes: inputs for which every result is known in closed form, so that a single key
// too many or too few shows without a tolerance.
#include "plugins/conformance/grids.h"
#include "plugins/conformance/rules.h"

namespace heddle::conformance {
namespace {

using Lengths = std::vector<int64_t>;

Lengths tile_edges(bool quick) {
  // The first one is small and no edge: what fails there is easiest to read.
  if (quick) return {12, 1, 2, 31, 33, 64, 65, 129};
  return {12, 1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 257, 300};
}

Lengths windows(int64_t length, bool quick) {
  Lengths w = {2, -1, 0, 1};
  for (const int64_t edge : {7, 15, 31, 63, 64, 65, 127}) {
    if (edge < length && (!quick || edge == 31 || edge == 64)) w.push_back(edge);
  }
  if (length > 2) w.push_back(length - 2);
  w.push_back(length - 1);
  w.push_back(length);
  return w;
}

void with_data(std::vector<Case>& cases, Data data) {
  for (Case& c : cases) c.data = data;
}

}  // namespace

void check_count(Check& check) {
  std::vector<Case> cases;
  for (const int64_t n : tile_edges(check.quick())) {
    for (const int64_t w : windows(n, check.quick())) {
      cases.push_back(make_case(HEDDLE_OP_FORWARD, n, n, w, {2, 1}, 4));
      const auto len = static_cast<int32_t>(n);
      cases.push_back(make_decode(1, n + 3, {len, (len + 1) / 2}, w, {2, 1}, 4));
      if (n > 3) cases.push_back(make_decode(3, n + 3, {len, (len + 3) / 2}, w, {2, 1}, 4));
    }
  }
  for (const int64_t w : {-1, 0, 2, 9}) {
    for (const auto& [q, k] : {std::pair<int64_t, int64_t>{2, 5}, {5, 2}, {3, 40}, {33, 70}}) {
      cases.push_back(make_case(HEDDLE_OP_FORWARD, q, k, w, {1, 1}, 4));
      Case shifted = cases.back();
      shifted.q_pos0 += 7;
      shifted.k_pos0 = 5;
      cases.push_back(shifted);
    }
  }
  with_data(cases, Data::kCount);
  check.each(cases, judge_probe);
}

void check_hot(Check& check) {
  std::vector<Case> cases;
  for (const int64_t n : tile_edges(check.quick())) {
    for (const int64_t w : {2, 0, 1, 7, 30}) {
      cases.push_back(make_case(HEDDLE_OP_FORWARD, n, n, w, {2, 1}, n <= 32 ? 32 : 64));
      const auto len = static_cast<int32_t>(n);
      cases.push_back(make_decode(1, n + 1, {len}, w, {2, 1}, n <= 32 ? 32 : 64));
    }
  }
  with_data(cases, Data::kHot);
  check.each(cases, judge_probe);
}

void check_heads(Check& check) {
  std::vector<Case> cases;
  for (const Heads heads : {Heads{6, 2},
                            {6, 3},
                            {4, 4},
                            {4, 1},
                            {8, 2},
                            {9, 3},
                            {10, 2},
                            {7, 7},
                            {12, 4},
                            {14, 2},
                            {15, 5},
                            {1, 1}}) {
    cases.push_back(make_case(HEDDLE_OP_FORWARD, 5, 5, -1, heads, 4, 2));
    cases.push_back(make_case(HEDDLE_OP_FORWARD, 33, 33, 9, heads, 8));
    cases.push_back(make_decode(1, 9, {9, 4}, -1, heads, 4));
  }
  with_data(cases, Data::kHead);
  check.each(cases, judge_probe);
}

void check_unit_gradients(Check& check) {
  std::vector<Case> cases;
  cases.push_back(make_case(HEDDLE_OP_BACKWARD, 6, 6, 2, {6, 2}, 4));
  for (const int64_t n : tile_edges(check.quick())) {
    for (const int64_t w : windows(n, check.quick())) {
      cases.push_back(make_case(HEDDLE_OP_BACKWARD, n, n, w, {3, 1}, 4));
    }
  }
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{2, 5}, {5, 2}, {3, 40}, {70, 33}}) {
    cases.push_back(make_case(HEDDLE_OP_BACKWARD, q, k, -1, {4, 2}, 4));
    cases.push_back(make_case(HEDDLE_OP_BACKWARD, q, k, 3, {4, 2}, 4));
  }
  with_data(cases, Data::kUnit);
  check.each(cases, judge_probe);
}

void check_long(Check& check) {
  std::vector<Case> cases;
  cases.push_back(make_case(HEDDLE_OP_FORWARD, 4225, 4225, 17, {1, 1}, 4));
  cases.push_back(make_decode(2, 8300, {8300, 4100}, -1, {2, 1}, 4));
  cases.push_back(make_decode(1, 8300, {8300}, 5000, {1, 1}, 4));
  cases.push_back(make_decode(1, 33000, {33000}, -1, {1, 1}, 4));
  if (!check.quick()) {
    cases.push_back(make_case(HEDDLE_OP_FORWARD, 5003, 5003, -1, {1, 1}, 4));
    cases.push_back(make_case(HEDDLE_OP_FORWARD, 9001, 9001, 130, {1, 1}, 4));
    cases.push_back(make_case(HEDDLE_OP_FORWARD, 66000, 66000, 15, {1, 1}, 4));
    cases.push_back(make_decode(1, 70000, {70000, 65537}, -1, {1, 1}, 4));
  }
  with_data(cases, Data::kCount);
  std::vector<Case> gradients = {make_case(HEDDLE_OP_BACKWARD, 4225, 4225, 17, {2, 1}, 4)};
  if (!check.quick()) {
    gradients.push_back(make_case(HEDDLE_OP_BACKWARD, 5003, 5003, -1, {1, 1}, 4));
    gradients.push_back(make_case(HEDDLE_OP_BACKWARD, 20000, 20000, 100, {1, 1}, 4));
  }
  with_data(gradients, Data::kUnit);
  cases.insert(cases.end(), gradients.begin(), gradients.end());
  check.each(cases, judge_probe);
}

}  // namespace heddle::conformance
