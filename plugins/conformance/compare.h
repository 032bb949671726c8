// Comparing a result with what was expected, element by element and as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugins/conformance/arrays.h"

namespace heddle::conformance {

// Bounds that must all hold, with M the largest magnitude expected: relative error of the whole
// (Frobenius) <= relative, error of an element <= absolute * max(1, M) (lse: absolute +
// per_element * |expected|).
struct Gate {
  double relative = 0.0;  // 0: not asked
  double absolute = 0.0;
  double per_element = 0.0;
  double least_rms = 0.0;  // of the expected values, for the relative error
};

// G32, G16 or GBF for out and for gradients, and GLSE, where scores are below `score_size`.
Gate out_gate(uint32_t dtype, double score_size);
Gate gradient_gate(uint32_t dtype, double score_size);
Gate lse_gate(double score_size);
// The exact-count probes.
Gate probe_gate(uint32_t dtype);

// The first element that is wrong, in the order batch, head, row, dim.
struct Difference {
  std::string tensor;  // "out"
  int64_t b = 0, h = 0, row = 0, dim = 0;
  double got = 0.0, want = 0.0;
  bool unwritten = false;  // this and all wrong elements still hold the poison
  double relative = 0.0;   // error of the whole
  int64_t wrong = 0;       // elements beyond the bound
  int64_t elements = 0;
};

// (batch, token, head, dim), or lse's (batch, head, token) with heads_first.
struct Shape {
  const char* tensor = "out";
  int64_t batch = 0, tokens = 0, heads = 0, dim = 1;
  bool heads_first = false;

  size_t at(int64_t b, int64_t h, int64_t row, int64_t d) const {
    const int64_t n = heads_first ? (b * heads + h) * tokens + row : (b * tokens + row) * heads + h;
    return static_cast<size_t>(n * dim + d);
  }
};
Shape shape_of(const Case& c, const char* tensor);

// NaN and infinities have to be where they are expected and nowhere else.
std::optional<Difference> compare(const Shape& shape, const std::vector<float>& got,
                                  const std::vector<double>& want, const Gate& gate,
                                  float poison = 0.0f);

// All results of the case's operation: lse first (it tells most), then out; or dq, dk, dv.
// Results that `got` does not have are not compared.
std::optional<Difference> compare_results(const Case& c, const Arrays& got, const Exact& want,
                                          double score_size);
std::optional<Difference> compare_probe(const Case& c, const Arrays& got, const Exact& want);

// The poison byte of a case as a number of its dtype (NaN for 0xff).
float poison_of(const Case& c);

// "out (b 0, h 1, row 5, dim 2): got 1.5, expected 2; 7 of 64 elements are wrong".
std::string describe(const Difference& d);

}  // namespace heddle::conformance
