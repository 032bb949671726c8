#include "plugins/conformance/diagnosis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plugins/conformance/check.h"
#include "plugins/conformance/grids.h"
#include "plugins/conformance/semantics.h"

namespace heddle::conformance {
namespace {

std::vector<Case> telling_cases() {
  Case offset = make_case(HEDDLE_OP_FORWARD, 9, 14, 3, {6, 3}, 5, 2);
  offset.q_pos0 = 8;
  offset.k_pos0 = 2;
  offset.scale = 0.3;
  Case backward = offset;
  backward.op = HEDDLE_OP_BACKWARD;
  Case plain = make_case(HEDDLE_OP_BACKWARD, 13, 13, -1, {4, 2}, 8);
  Case empty = make_case(HEDDLE_OP_FORWARD, 6, 3, -1, {1, 1}, 4);
  Case open = make_case(HEDDLE_OP_FORWARD, 8, 8, 2, {1, 1}, 4);
  open.causal = false;
  return {offset, backward, plain, empty, open, make_decode(2, 12, {12, 5, 9}, 3, {6, 3}, 5)};
}

TEST(Semantics, UnchangedModelIsTheDefinition) {
  for (const Case& c : telling_cases()) {
    const Arrays inputs = inputs_of(c);
    const Exact model = model_results(c, inputs, Semantics{});
    EXPECT_FALSE(compare_results(c, narrowed(model), exact_results(c, inputs), 1.0)) << to_spec(c);
  }
}

// Whatever a known mistake gives is recognised as that mistake, or as one with the same results.
TEST(Diagnosis, RecognisesEveryKnownMistake) {
  int recognised = 0;
  for (const Case& c : telling_cases()) {
    const Arrays inputs = inputs_of(c);
    const Exact want = exact_results(c, inputs);
    for (const Semantics& mistake : known_mistakes(c)) {
      const Exact wrong = model_results(c, inputs, mistake);
      const Arrays got = narrowed(wrong);
      const auto difference = compare_results(c, got, want, score_size(c, inputs));
      if (!difference || std::isnan(difference->got)) continue;
      const Diagnosis d = diagnose(c, inputs, got, want, *difference);
      EXPECT_TRUE(d.known) << mistake.words << ": " << d.words;
      recognised += d.words.find(mistake.words) != std::string::npos;
    }
  }
  EXPECT_GT(recognised, 100);
}

struct Expected {
  const char* fragment;
  void (*change)(Semantics&);
};

TEST(Diagnosis, NamesTheClassics) {
  const Case c = make_case(HEDDLE_OP_FORWARD, 12, 12, 3, {6, 2}, 8);
  const Expected expected[] = {
      {"the scale is missing", [](Semantics& s) { s.scale = [](const Case&) { return 1.0; }; }},
      {"lse is in base 2",
       [](Semantics& s) { s.lse = [](double x, double) { return x / std::log(2.0); }; }},
      {"h mod n_kv_head",
       [](Semantics& s) { s.kv_head = [](const Case& x, int64_t h) { return h % x.n_kv_head; }; }},
      {"one earlier key too many",
       [](Semantics& s) {
         s.visible = [](const Case& x, int64_t, int64_t i, int64_t j) {
           return j <= i && i - j <= x.window_left + 1;
         };
       }},
  };
  const Arrays inputs = inputs_of(c);
  const Exact want = exact_results(c, inputs);
  for (const Expected& e : expected) {
    Semantics s;
    e.change(s);
    const Arrays got = narrowed(model_results(c, inputs, s));
    const auto difference = compare_results(c, got, want, 1.0);
    ASSERT_TRUE(difference) << e.fragment;
    const std::string words = diagnose(c, inputs, got, want, *difference).words;
    EXPECT_NE(words.find(e.fragment), std::string::npos) << words;
  }
}

TEST(Diagnosis, SaysWhereWhenNothingIsKnown) {
  const Case c = make_case(HEDDLE_OP_FORWARD, 12, 12, -1, {4, 2}, 8);
  const Arrays inputs = inputs_of(c);
  const Exact want = exact_results(c, inputs);
  Arrays got = narrowed(want);
  const Shape s = shape_of(c, "out");
  for (int64_t row = 8; row < 12; ++row)
    got.out[s.at(0, 2, row, 5)] += static_cast<float>(row * row);
  const auto difference = compare_results(c, got, want, 1.0);
  ASSERT_TRUE(difference);
  const Diagnosis d = diagnose(c, inputs, got, want, *difference);
  EXPECT_FALSE(d.known);
  EXPECT_EQ(d.words, "only head 2 and rows >= 8 and dim 5");
}

TEST(Diagnosis, SeesOneFactorAndLowPrecision) {
  const Case c = make_case(HEDDLE_OP_FORWARD, 12, 12, -1, {1, 1}, 8);
  const Arrays inputs = inputs_of(c);
  const Exact want = exact_results(c, inputs);
  Arrays got = narrowed(want);
  for (float& v : got.out) v *= 1.7f;
  auto d = compare_results(c, got, want, 1.0);
  EXPECT_NE(diagnose(c, inputs, got, want, *d).words.find("1.7 times"), std::string::npos);
  got = narrowed(want);
  float sign = 3e-3f;
  for (float& v : got.out) v *= 1.0f + (sign = -sign);
  d = compare_results(c, got, want, 1.0);
  EXPECT_NE(diagnose(c, inputs, got, want, *d).words.find("bf16"), std::string::npos);
}

TEST(Diagnosis, ExplainsNan) {
  Case c = make_case(HEDDLE_OP_FORWARD, 6, 3, -1, {1, 1}, 4);
  const Arrays inputs = inputs_of(c);
  const Exact want = exact_results(c, inputs);
  Arrays got = narrowed(want);
  got.lse[0] = std::nanf("1");
  c.poison = 0;
  const auto d = compare_results(c, got, want, 1.0);
  ASSERT_TRUE(d);
  EXPECT_NE(diagnose(c, inputs, got, want, *d).words.find("sees no key"), std::string::npos);
}

TEST(ReadProbe, CountsSayWhichKeysARowSaw) {
  Case c = make_case(HEDDLE_OP_FORWARD, 8, 8, 1, {1, 1}, 2);
  c.data = Data::kCount;
  Case wider = c;
  wider.window_left = 2;
  const Arrays got = narrowed(probe_results(wider));
  const auto d = compare_probe(c, got, probe_results(c));
  ASSERT_TRUE(d);
  EXPECT_EQ(read_probe(c, got, *d), "row 2 sees keys 0..2, expected keys 1..2");
}

TEST(ReadProbe, OneHotValuesNameTheKey) {
  Case c = make_case(HEDDLE_OP_FORWARD, 8, 8, 1, {1, 1}, 8);
  c.data = Data::kHot;
  Case wider = c;
  wider.window_left = 2;
  Arrays got = narrowed(probe_results(wider));
  got.lse.clear();
  const auto d = compare_probe(c, got, probe_results(c));
  ASSERT_TRUE(d);
  EXPECT_EQ(read_probe(c, got, *d),
            "row 2 sees key 0, which is hidden from it, expected keys 1..2");
}

TEST(ReadProbe, HeadsNameThePairing) {
  Case c = make_case(HEDDLE_OP_FORWARD, 3, 3, -1, {6, 2}, 2);
  c.data = Data::kHead;
  const Exact want = probe_results(c);
  Arrays got = narrowed(want);
  const Shape s = shape_of(c, "out");
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t d = 0; d < 2; ++d) got.out[s.at(0, 1, row, d)] = 2.0f;
  }
  const auto d = compare_probe(c, got, want);
  ASSERT_TRUE(d);
  EXPECT_EQ(read_probe(c, got, *d), "query head 1 reads kv head 1, expected 0");
}

}  // namespace
}  // namespace heddle::conformance
