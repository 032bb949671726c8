// What `heddle plugin bench` measures: one operation on one shape, and how much work that is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/config/config.h"
#include "framework/core/json.h"
#include "framework/model/spec.h"

namespace heddle {

struct BenchCase {
  uint32_t op = HEDDLE_OP_FORWARD;
  AttentionLayerKind kind;
  int64_t batch = 1;
  int64_t seq_len = 0;                // DECODE: tokens in the cache, one of them new
  AttentionLayout layout;             // rows of the projected buffer, as the model has them (fp32)
  uint32_t dtype = HEDDLE_DTYPE_F32;  // 16-bit tensors are dense

  friend bool operator==(const BenchCase& a, const BenchCase& b) {
    return a.op == b.op && a.kind == b.kind && a.batch == b.batch && a.seq_len == b.seq_len &&
           a.dtype == b.dtype;
  }
};

// "B 8 T 256 H 4 K 2 D 32 window_left 128".
std::string shape_text(const BenchCase& c);

// Visible (query, key) pairs of one query head of one batch row.
int64_t visible_pairs(const BenchCase& c);
// Floating-point operations of the products: 4 D a pair forward and in decode, 10 D backward.
double flops(const BenchCase& c);
// Bytes of keys and values that a decode has to read.
double cache_bytes(const BenchCase& c);

// Separate contiguous tensors.
AttentionLayout contiguous_layout(const AttentionLayerKind& kind);

// The model of a run, without looking at its data: the vocabulary, which attention does not depend
// on, is model.vocab_size or that of bytes.
ModelSpec attention_spec(const Config& config);

// The layer kinds of a run: training on its micro-batch, decode of one row. Reads no data.
std::vector<BenchCase> cases_of_run(const Config& config);
// Lengths 128 to 1024, without a window and with a quarter of the length.
std::vector<BenchCase> cases_of_sweep();
// A JSON file: a list of {"seq_len", "n_head", "head_dim"} with optional "n_kv_head", "batch",
// "window_left" and "ops" (["forward", "backward", "decode"]). Throws heddle::Error (config).
std::vector<BenchCase> cases_of_file(const std::string& path);

// For the fresh process, as one argument.
std::string case_to_text(const BenchCase& c);
BenchCase case_from_text(const std::string& text);

}  // namespace heddle
