// Random and adversarial values against the fp64 definition.
#include "plugins/conformance/grids.h"
#include "plugins/conformance/rules.h"

namespace heddle::conformance {
namespace {

void add_shapes(std::vector<Case>& cases, const std::vector<int64_t>& lengths, Heads heads,
                int64_t dim, int64_t batch) {
  for (const int64_t n : lengths) {
    for (const int64_t w : {int64_t{-1}, int64_t{3}, n / 3}) {
      add_training(cases, make_case(HEDDLE_OP_FORWARD, n, n, w, heads, dim, batch));
    }
  }
}

}  // namespace

void check_random(Check& check) {
  std::vector<Case> cases;
  add_shapes(cases, {37, 1, 2, 64, 65}, {4, 2}, 16, 2);
  add_shapes(cases, {130}, {2, 1}, 64, 1);
  cases.push_back(make_decode(1, 70, {70, 33, 1}, -1, {4, 2}, 64));
  cases.push_back(make_decode(5, 70, {64, 9}, 20, {4, 2}, 16));
  if (!check.quick()) {
    add_shapes(cases, {15, 16, 17, 31, 33, 63, 127, 129, 193, 257}, {6, 2}, 32, 2);
    add_shapes(cases, {300}, {4, 4}, 128, 1);
    add_shapes(cases, {513}, {2, 1}, 64, 1);
    add_shapes(cases, {255, 256, 320, 449}, {4, 1}, 80, 1);
    add_shapes(cases, {1025}, {2, 1}, 128, 1);
    for (const int32_t n : {2, 31, 64, 65, 300}) {
      cases.push_back(make_decode(1, 310, {n, 300}, -1, {6, 3}, 64));
      cases.push_back(make_decode(1, 310, {n, 300}, 40, {6, 3}, 64));
    }
  }
  const size_t plain = cases.size();
  for (size_t i = 0; i < plain; i += 2) {
    cases.push_back(cases[i]);
    cases.back().data = Data::kNormed;
    cases.back().workers = 2;
  }
  check.each(cases, judge_numbers);
}

void check_positions(Check& check) {
  std::vector<Case> cases;
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{5, 12},
                             {2, 5},
                             {5, 2},
                             {1, 9},
                             {40, 104},
                             {104, 40},
                             {16, 100},
                             {65, 64},
                             {129, 2},
                             {1, 130}}) {
    for (const int64_t w : {-1, 2, 20}) {
      Case c = make_case(HEDDLE_OP_FORWARD, q, k, w, {6, 3}, 20);
      add_training(cases, c);
      if (check.quick() && q + k > 100) continue;
      c.q_pos0 += 6;  // some keys behind every window, more keys visible
      c.k_pos0 = 3;
      add_training(cases, c);
      c.q_pos0 = 1000003;
      c.k_pos0 = 1000000;
      add_training(cases, c);
    }
  }
  check.each(cases, judge_numbers);
}

void check_no_mask(Check& check) {
  std::vector<Case> cases;
  for (const int64_t n : {13, 1, 65}) {
    for (const int64_t w : {-1, 0, 4}) {
      Case c = make_case(HEDDLE_OP_FORWARD, n, n, w, {2, 1}, 16);
      c.causal = false;
      add_training(cases, c);
      c.k_len += 7;
      add_training(cases, c);
      Case step = make_decode(2, n + 4, {static_cast<int32_t>(n + 1)}, w, {2, 1}, 16);
      step.causal = false;
      cases.push_back(step);
    }
  }
  check.each(cases, judge_numbers);
}

void check_wide_window(Check& check) {
  std::vector<Case> cases;
  for (const int64_t n : {9, 64, 129}) {
    for (const int64_t w : {n - 2, n - 1, n, n + 1, int64_t{1} << 40}) {
      add_training(cases, make_case(HEDDLE_OP_FORWARD, n, n, w, {2, 1}, 16));
      Case c = make_case(HEDDLE_OP_FORWARD, n, n, w, {2, 1}, 16);
      c.q_pos0 = 5;  // the window cuts though it is as long as k_len
      add_training(cases, c);
    }
  }
  check.each(cases, judge_numbers);
}

void check_empty_rows(Check& check) {
  std::vector<Case> cases;
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 5, 2, -1, {2, 1}, 8));
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 70, 3, 1, {2, 1}, 8));
  add_training(cases, make_case(HEDDLE_OP_FORWARD, 130, 64, -1, {1, 1}, 16));
  Case c = make_case(HEDDLE_OP_FORWARD, 6, 5, 3, {2, 1}, 8);
  c.q_pos0 = 4;  // the last rows lie behind the window of every key
  add_training(cases, c);
  c.q_pos0 = 100;  // all rows do
  add_training(cases, c);
  c.q_pos0 = -100;  // all keys are later
  add_training(cases, c);
  for (const auto& [batch, q, k] : {std::array<int64_t, 3>{1, 4, 0}, {1, 0, 4}, {0, 4, 4}}) {
    add_training(cases, make_case(HEDDLE_OP_FORWARD, q, k, -1, {2, 1}, 8, batch));
  }
  cases.push_back(make_decode(1, 6, {0, 3}, -1, {2, 1}, 8));
  cases.push_back(make_decode(4, 6, {2, 6, 0}, -1, {2, 1}, 8));
  cases.push_back(make_decode(4, 6, {2, 6}, 1, {2, 1}, 8));
  check.each(cases, judge_numbers);
}

void check_groups(Check& check) {
  std::vector<Case> cases;
  for (const Heads heads :
       {Heads{6, 2}, {3, 1}, {5, 1}, {7, 1}, {9, 3}, {10, 2}, {14, 2}, {12, 12}, {8, 1}, {40, 4}}) {
    add_training(cases, make_case(HEDDLE_OP_FORWARD, 33, 33, 9, heads, 8, 2));
    if (!check.quick()) {
      add_training(cases, make_case(HEDDLE_OP_FORWARD, 130, 130, -1, heads, 64));
      add_training(cases, make_case(HEDDLE_OP_FORWARD, 65, 100, 50, heads, 20));
    }
    cases.push_back(make_decode(1, 129, {129, 40, 7}, -1, heads, 16));
  }
  check.each(cases, judge_numbers);
}

void check_head_dims(Check& check) {
  std::vector<Case> cases;
  std::vector<int64_t> dims = {20, 1, 3, 8, 33, 64, 80, 128, 256};
  if (!check.quick()) {
    dims.insert(dims.end(), {2,  4,  5,  7,  12, 15,  16,  17,  24,  31,  32,  36,
                             48, 63, 65, 72, 96, 100, 112, 127, 160, 192, 224, 255});
  }
  for (const int64_t d : dims) {
    add_training(cases, make_case(HEDDLE_OP_FORWARD, 19, 19, 6, {2, 1}, d));
    cases.push_back(make_decode(2, 19, {19}, -1, {2, 1}, d));
  }
  check.each(cases, judge_numbers, Adapt::kAllButHeadDim);
}

void check_scale(Check& check) {
  std::vector<Case> cases;
  for (const double scale : {0.3, 1.0, 0.01, 0.1}) {
    Case c = make_case(HEDDLE_OP_FORWARD, 17, 17, -1, {2, 1}, 16);
    c.scale = scale;
    add_training(cases, c);
    Case step = make_decode(1, 17, {17, 5}, -1, {2, 1}, 16);
    step.scale = scale;
    cases.push_back(step);
  }
  check.each(cases, judge_numbers);
}

void check_large_scores(Check& check) {
  std::vector<Case> cases;
  for (const int64_t n : {11, 2, 70}) {
    for (const int64_t d : {16, 64}) {
      add_training(cases, make_case(HEDDLE_OP_FORWARD, n, n, -1, {2, 1}, d));
      cases.push_back(make_decode(1, n, {static_cast<int32_t>(n)}, -1, {2, 1}, d));
    }
  }
  for (Case& c : cases) c.data = Data::kLarge;
  check.each(cases, judge_numbers);
}

void check_adversarial(Check& check) {
  std::vector<Case> cases;
  for (const Data data : {Data::kEqual, Data::kDenormal, Data::kOffset, Data::kOneHot}) {
    for (const int64_t n : {12, 1, 65}) {
      for (const int64_t w : {-1, 5}) {
        Case c = make_case(HEDDLE_OP_FORWARD, n, n, w, {2, 1}, 16);
        c.data = data;
        add_training(cases, c);
      }
      Case step = make_decode(1, n, {static_cast<int32_t>(n)}, -1, {2, 1}, 16);
      step.data = data;
      cases.push_back(step);
    }
  }
  check.each(cases, judge_numbers);
}

void check_dtypes(Check& check) {
  std::vector<Case> cases;
  for (const uint32_t dtype : check.session().dtypes()) {
    for (const int64_t n : {33, 64, 130}) {
      Case c = make_case(HEDDLE_OP_FORWARD, n, n, n / 2, {4, 2}, 64);
      c.dtype = dtype;
      add_training(cases, c);
      Case step = make_decode(1, n, {static_cast<int32_t>(n)}, -1, {4, 2}, 64);
      step.dtype = dtype;
      cases.push_back(step);
    }
  }
  check.each(cases, judge_numbers);
}

namespace {

Judgement judge_own_lse(Session& session, const Case& c, bool explain) {
  Case forward = c;
  forward.op = HEDDLE_OP_FORWARD;
  forward.lse = !session.has(HEDDLE_PROP_NO_LSE);
  Arrays inputs = inputs_of(c);
  const CallResult first = call_plugin(session, forward, inputs);
  if (!first.ran()) return Judgement::of(first);
  inputs.out = first.got.out;
  if (forward.lse) inputs.lse = first.got.lse;
  const CallResult second = call_plugin(session, c, inputs);
  if (!second.ran()) return Judgement::of(second);
  const Exact want = exact_results(c, inputs);
  const auto difference = compare_results(c, second.got, want, score_size(c, inputs));
  if (!difference) return Judgement::passed();
  return Judgement::failed(
      "backward: " + difference->tensor + " is wrong after the plugin's own forward",
      describe(*difference),
      explain ? diagnose(c, inputs, second.got, want, *difference) : Diagnosis{});
}

}  // namespace

void check_own_lse(Check& check) {
  std::vector<Case> cases;
  for (const int64_t n : {21, 1, 65, 130}) {
    cases.push_back(make_case(HEDDLE_OP_BACKWARD, n, n, -1, {4, 2}, 16));
    cases.push_back(make_case(HEDDLE_OP_BACKWARD, n, n, 9, {4, 2}, 16));
  }
  cases.push_back(make_case(HEDDLE_OP_BACKWARD, 7, 4, -1, {2, 1}, 16));
  check.each(cases, judge_own_lse);
}

}  // namespace heddle::conformance
