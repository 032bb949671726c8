// Short ways to write cases.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/conformance/case.h"

namespace heddle::conformance {

struct Heads {
  int64_t query, kv;
};

// k_len keys at positions 0.., q_len queries that end with the last key.
inline Case make_case(uint32_t op, int64_t q_len, int64_t k_len, int64_t window, Heads heads,
                      int64_t dim, int64_t batch = 1) {
  Case c;
  c.op = op;
  c.batch = batch;
  c.q_len = q_len;
  c.k_len = k_len;
  c.window_left = window;
  c.n_head = heads.query;
  c.n_kv_head = heads.kv;
  c.head_dim = dim;
  c.q_pos0 = k_len - q_len;
  return c;
}

// One step with a cache; one batch row per length.
inline Case make_decode(int64_t q_len, int64_t capacity, std::vector<int32_t> kv_len,
                        int64_t window, Heads heads, int64_t dim) {
  Case c = make_case(HEDDLE_OP_DECODE, q_len, capacity, window, heads, dim,
                     static_cast<int64_t>(kv_len.size()));
  c.q_pos0 = 0;
  c.kv_len = std::move(kv_len);
  return c;
}

// The same problem for both training operations.
inline void add_training(std::vector<Case>& cases, Case c) {
  c.op = HEDDLE_OP_FORWARD;
  cases.push_back(c);
  c.op = HEDDLE_OP_BACKWARD;
  cases.push_back(c);
}

}  // namespace heddle::conformance
