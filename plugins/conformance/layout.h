// Where the tensors of a case lie: storages, offsets and strides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/conformance/case.h"

namespace heddle::conformance {

// A tensor inside one of the call's storages.
struct Placement {
  int storage = -1;    // -1: the call does not have this tensor
  int64_t offset = 0;  // elements
  heddle_strides strides{};

  int64_t index(int64_t b, int64_t t, int64_t h) const {
    return offset + b * strides.batch + t * strides.token + h * strides.head;
  }
};

struct Storage {
  std::string label;       // "q, k, v", for messages
  int64_t elements = 0;    // up to the last element of the last tensor, not a byte more
  bool is_output = false;  // holds tensors that the call writes
};

struct CallLayout {
  Placement q, k, v, out, dout, dq, dk, dv;
  int64_t lse_stride_batch = 0, lse_stride_head = 0;
  int64_t lse_elements = 0;
  std::vector<Storage> storages;
};

CallLayout lay_out(const Case& c);

// The problem of a case as query() sees it.
heddle_attention_problem make_problem(const Case& c, const CallLayout& layout);

}  // namespace heddle::conformance
