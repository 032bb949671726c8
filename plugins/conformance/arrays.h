// The numbers of a call without their layout: contiguous (batch, token, head, dim), lse as
// (batch, head, token). Tensors that a call does not have are empty.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/conformance/case.h"

namespace heddle::conformance {

template <class T>
struct Tensors {
  std::vector<T> q, k, v, dout;  // inputs
  std::vector<T> out, lse;       // results of FORWARD and DECODE, inputs of BACKWARD
  std::vector<T> dq, dk, dv;     // results of BACKWARD
};
using Arrays = Tensors<float>;
using Exact = Tensors<double>;

// Results, rounded; inputs stay empty.
inline Arrays narrowed(const Exact& e) {
  Arrays a;
  a.out.assign(e.out.begin(), e.out.end());
  a.lse.assign(e.lse.begin(), e.lse.end());
  a.dq.assign(e.dq.begin(), e.dq.end());
  a.dk.assign(e.dk.begin(), e.dk.end());
  a.dv.assign(e.dv.begin(), e.dv.end());
  return a;
}

// The data of a case, rounded to its dtype: q, k, v and, for BACKWARD, dout. Decode caches are
// filled up to kv_len and NaN behind. Depends on nothing but the case.
Arrays make_inputs(const Case& c);

// Fills out and lse of BACKWARD's inputs with what the definition gives.
void add_forward_results(const Case& c, Arrays& arrays);

// What the definition gives for these inputs, in fp64: out and lse, or dq, dk and dv.
Exact exact_results(const Case& c, const Arrays& inputs);

// The results of the exact-count probes (Data::kCount, kHot, kHead, kUnit) in closed form: no
// mask rule of anybody is used. Only out and lse, or dq, dk, dv.
Exact probe_results(const Case& c);

// Keys that query row i of batch row b sees: [first, last], empty when last < first.
struct KeySpan {
  int64_t first = 0;
  int64_t last = -1;
  int64_t size() const { return last < first ? 0 : last - first + 1; }
};
KeySpan keys_seen(const Case& c, int64_t b, int64_t i);

// Largest sum of |scale * q_d * k_d| over visible pairs: how much a score can be rounded.
double score_size(const Case& c, const Arrays& inputs);

}  // namespace heddle::conformance
