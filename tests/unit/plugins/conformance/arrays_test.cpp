#include "plugins/conformance/arrays.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plugins/conformance/compare.h"
#include "plugins/conformance/grids.h"

namespace heddle::conformance {
namespace {

// The closed forms against the definition.
void expect_probe_equals_definition(Case c, Data data) {
  c.data = data;
  Arrays inputs = make_inputs(c);
  const Exact probe = probe_results(c), definition = exact_results(c, inputs);
  const auto near = [&](const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) {
        ASSERT_NEAR(a[i], b[i], 1e-9 * std::max(1.0, std::fabs(a[i]))) << to_spec(c) << " " << i;
      }
    }
  };
  near(probe.out, definition.out);
  near(probe.lse, definition.lse);
  near(probe.dq, definition.dq);
  near(probe.dk, definition.dk);
  near(probe.dv, definition.dv);
}

TEST(ProbeResults, EqualTheDefinition) {
  for (const int64_t w : {-1, 0, 2, 9}) {
    for (const Data data : {Data::kCount, Data::kHot, Data::kHead}) {
      expect_probe_equals_definition(make_case(HEDDLE_OP_FORWARD, 7, 11, w, {6, 2}, 4, 2), data);
      expect_probe_equals_definition(make_case(HEDDLE_OP_FORWARD, 11, 4, w, {6, 2}, 4), data);
      expect_probe_equals_definition(make_decode(3, 12, {12, 2, 0}, w, {6, 2}, 4), data);
      Case open = make_case(HEDDLE_OP_FORWARD, 7, 11, w, {6, 2}, 4);
      open.causal = false;
      expect_probe_equals_definition(open, data);
    }
    expect_probe_equals_definition(make_case(HEDDLE_OP_BACKWARD, 7, 11, w, {6, 2}, 4, 2),
                                   Data::kUnit);
    expect_probe_equals_definition(make_case(HEDDLE_OP_BACKWARD, 11, 4, w, {6, 2}, 4), Data::kUnit);
  }
}

TEST(ProbeResults, UnitGradientsOfTheWorkedExample) {
  Case c = make_case(HEDDLE_OP_BACKWARD, 6, 6, 2, {3, 1}, 1);
  c.data = Data::kUnit;
  const std::vector<double> want = {5.5, 3.5, 3.0, 3.0, 2.0, 1.0};
  const Exact got = probe_results(c);
  for (size_t j = 0; j < want.size(); ++j) EXPECT_NEAR(got.dv[j], want[j], 1e-12);
}

TEST(ProbeResults, UnitForwardResultsInClosedFormEqualTheDefinition) {
  Case c = make_case(HEDDLE_OP_BACKWARD, 9, 5, 2, {4, 2}, 3, 2);
  c.data = Data::kUnit;
  Arrays closed = make_inputs(c);
  add_forward_results(c, closed);
  Case forward = c;
  forward.op = HEDDLE_OP_FORWARD;
  const Exact exact = exact_results(forward, closed);
  for (size_t i = 0; i < exact.out.size(); ++i) EXPECT_NEAR(closed.out[i], exact.out[i], 1e-6);
  for (size_t i = 0; i < exact.lse.size(); ++i) {
    if (closed.lse[i] != exact.lse[i]) {
      EXPECT_NEAR(closed.lse[i], exact.lse[i], 1e-6);
    }
  }
}

TEST(MakeInputs, DependsOnTheSeedAndNothingElse) {
  const Case c = make_case(HEDDLE_OP_FORWARD, 7, 7, -1, {2, 1}, 8);
  EXPECT_EQ(make_inputs(c).q, make_inputs(c).q);
  Case other = c;
  other.seed = 2;
  EXPECT_NE(make_inputs(c).q, make_inputs(other).q);
  other = c;
  other.layout = Layout::kPadded;
  EXPECT_EQ(make_inputs(c).v, make_inputs(other).v);
}

TEST(MakeInputs, CachesAreNanBehindTheirLength) {
  const Case c = make_decode(1, 5, {3, 5}, -1, {1, 1}, 2);
  const Arrays a = make_inputs(c);
  for (size_t i = 0; i < a.k.size(); ++i) {
    const bool tail = i >= 6 && i < 10;  // batch row 0, tokens 3 and 4
    EXPECT_EQ(std::isnan(a.k[i]), tail) << i;
    EXPECT_EQ(std::isnan(a.v[i]), tail) << i;
  }
}

TEST(MakeInputs, LargeScoresAreExactInFp32) {
  Case c = make_case(HEDDLE_OP_FORWARD, 9, 9, -1, {1, 1}, 64);
  c.data = Data::kLarge;
  const Arrays a = make_inputs(c);
  double largest = 0.0;
  for (size_t j = 0; j < 9; ++j) {
    double sum = 0.0;
    float rounded = 0.0f;
    for (size_t d = 0; d < 64; ++d) {
      sum += static_cast<double>(a.q[d]) * a.k[j * 64 + d];
      rounded += a.q[d] * a.k[j * 64 + d];
    }
    EXPECT_EQ(sum, rounded);
    largest = std::max(largest, std::fabs(sum * scale_of(c)));
  }
  EXPECT_GT(largest, 500.0);
  EXPECT_GE(score_size(c, a), largest);
}

}  // namespace
}  // namespace heddle::conformance
