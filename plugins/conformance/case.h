// A case: one attention problem of the suite with everything that makes it repeatable, down to the
// seed of its data. A case has a spec, a line of text that brings it back:
//   forward,q_len=5,k_len=5,window_left=1,data=hot
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/abi/heddle_attention.h"

namespace heddle::conformance {

// How the tensors of a call lie in memory.
enum class Layout {
  kContiguous,
  kPadded,     // every tensor with its own row and head gaps
  kPacked,     // q, k, v (and dq, dk, dv) as columns of shared rows, as a fused projection gives
  kHeadMajor,  // (batch, head, token, dim)
};

// What the tensors hold; data.h says more.
enum class Data {
  kRandom,
  kNormed,    // q and k rows of RMS 1.2, as after QK-norm
  kLarge,     // scores of thousands, exactly representable
  kEqual,     // all keys alike
  kDenormal,  // q and k below the normal range
  kOffset,    // values with mean 8
  kOneHot,    // one-hot and repeated rows
  kCount,     // k = 0, v = key index
  kHot,       // k = 0, v one-hot at key index mod head_dim
  kHead,      // k = 0, v = kv head + 1
  kUnit,      // q = k = 0, dout = 1
};

// Which end of every buffer touches an inaccessible page.
enum class Edge { kEnd, kStart };

// The order in which the host hands out the pieces of parallel_for.
enum class Order { kInOrder, kReversed, kShuffled, kOnePiece };

struct Case {
  uint32_t op = HEDDLE_OP_FORWARD;
  int64_t batch = 1;
  int64_t q_len = 1;
  int64_t k_len = 1;  // decode: capacity of the cache
  int64_t n_head = 1;
  int64_t n_kv_head = 1;
  int64_t head_dim = 4;
  int64_t window_left = -1;
  bool causal = true;
  int64_t q_pos0 = 0;
  int64_t k_pos0 = 0;
  std::vector<int32_t> kv_len;  // decode: one per batch row
  double scale = 0.0;           // 0: 1 / sqrt(head_dim)
  bool lse = true;              // forward, decode: ask for it
  bool deterministic = false;
  uint32_t dtype = HEDDLE_DTYPE_F32;
  uint32_t align = 4;
  Layout layout = Layout::kContiguous;
  Data data = Data::kRandom;
  Edge edge = Edge::kEnd;
  Order order = Order::kInOrder;
  int64_t workers = 1;
  int64_t poison = 0xff;  // the byte that outputs, gaps and workspace hold before a call
  int64_t chunk = 0;      // rules over several calls: new tokens per call
  int64_t seed = 1;

  friend bool operator==(const Case&, const Case&) = default;
};

float scale_of(const Case& c);
int64_t group_of(const Case& c);
// Position of query row i of batch row b.
int64_t query_position(const Case& c, int64_t b, int64_t i);
// Keys that exist for batch row b: kv_len[b] in decode, else k_len.
int64_t keys_of(const Case& c, int64_t b);

const char* op_name(uint32_t op);
const char* dtype_name(uint32_t dtype);

// Fields that differ from the default, in the order above.
std::string to_spec(const Case& c);
// Reads a spec; nothing and a message in *error when it is not one.
std::optional<Case> parse_spec(std::string_view spec, std::string* error);

// "forward batch 1, q_len 5, k_len 5, n_head 2, n_kv_head 1, head_dim 4, window_left 1".
std::string describe(const Case& c);

// Number of elements of a contiguous q-like and k-like tensor and of lse.
int64_t query_elements(const Case& c);
int64_t key_elements(const Case& c);
int64_t lse_elements(const Case& c);

}  // namespace heddle::conformance
