// What a wrong result looks like, in words.
#pragma once

#include <string>
#include <vector>

#include "plugins/conformance/arrays.h"
#include "plugins/conformance/compare.h"

namespace heddle::conformance {

struct Diagnosis {
  std::string words;      // may be empty
  bool known = false;     // a known mistake gives exactly these results
  bool searched = false;  // known mistakes were tried
};

// The known mistake whose results equal `got`, or, when none does, what the numbers suggest: never
// written, NaN and where it may come from, one factor or offset for all, low precision, and which
// rows, heads or dims are wrong. May be empty. `want` holds the right results.
Diagnosis diagnose(const Case& c, const Arrays& inputs, const Arrays& got, const Exact& want,
                   const Difference& difference);

// For the exact-count probes: which keys or heads the first wrong row used, "row 5 sees keys 3..5,
// expected 4..5".
std::string read_probe(const Case& c, const Arrays& got, const Difference& difference);

// "only rows >= 64 and batch row 1"; empty when wrong elements are everywhere.
std::string where_wrong(const Case& c, const std::string& tensor, const std::vector<float>& got,
                        const std::vector<double>& want, double bound);

}  // namespace heddle::conformance
