// Which keys a query may see, and what follows from it for rows, columns and tiles.
//
// Query i has the absolute position qp = q_pos0 + i, key j has kp = k_pos0 + j. Key j is visible to
// query i when
//     (!causal or kp <= qp)  and  (window_left < 0 or qp - kp <= window_left).
// So window_left counts earlier keys besides self: W shows at most W + 1 keys when causal.
// Both ends of a row's visible range never decrease with i, and both ends of a key's range of
// queries never decrease with j; everything below rests on that.
//
// All ranges are half open. All arithmetic is int64: positions and lengths must stay below 2^62.
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"

namespace heddle::kernels {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  HEDDLE_HD constexpr int64_t size() const { return end > begin ? end - begin : 0; }
  HEDDLE_HD constexpr bool empty() const { return end <= begin; }
  HEDDLE_HD constexpr bool contains(int64_t i) const { return i >= begin && i < end; }
};

HEDDLE_HD constexpr int64_t min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
HEDDLE_HD constexpr int64_t max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
HEDDLE_HD constexpr int64_t clamp_i64(int64_t x, int64_t lo, int64_t hi) {
  return min_i64(max_i64(x, lo), hi);
}
// For a >= 0, b > 0.
HEDDLE_HD constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
HEDDLE_HD constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

HEDDLE_HD constexpr Range intersect(Range a, Range b) {
  return {max_i64(a.begin, b.begin), min_i64(a.end, b.end)};
}

struct AttentionMask {
  int64_t q_len = 0;         // number of queries, >= 0
  int64_t k_len = 0;         // number of keys, >= 0
  int64_t q_pos0 = 0;        // absolute position of query 0
  int64_t k_pos0 = 0;        // absolute position of key 0
  int64_t window_left = -1;  // earlier keys besides self; -1: unlimited
  bool causal = true;
};

// Keys that query i sees. The range may be empty; its ends then still lie in [0, k_len].
HEDDLE_HD constexpr Range keys_of_query(const AttentionMask& m, int64_t i) {
  const int64_t self = m.q_pos0 + i - m.k_pos0;  // the key index with the query's own position
  const int64_t begin = m.window_left < 0 ? 0 : clamp_i64(self - m.window_left, 0, m.k_len);
  const int64_t end = m.causal ? clamp_i64(self + 1, 0, m.k_len) : m.k_len;
  return {begin, end};
}

// Queries that see key j.
HEDDLE_HD constexpr Range queries_of_key(const AttentionMask& m, int64_t j) {
  const int64_t self = m.k_pos0 + j - m.q_pos0;  // the query index with the key's own position
  const int64_t begin = m.causal ? clamp_i64(self, 0, m.q_len) : 0;
  const int64_t end = m.window_left < 0 ? m.q_len : clamp_i64(self + m.window_left + 1, 0, m.q_len);
  return {begin, end};
}

// Keys that at least one query of `rows` sees (the hull: nothing outside is visible to any of
// them). `rows` must not be empty and must lie in [0, q_len].
HEDDLE_HD constexpr Range keys_of_queries(const AttentionMask& m, Range rows) {
  return {keys_of_query(m, rows.begin).begin, keys_of_query(m, rows.end - 1).end};
}

// Keys that every query of `rows` sees; may be empty.
HEDDLE_HD constexpr Range common_keys_of_queries(const AttentionMask& m, Range rows) {
  return {keys_of_query(m, rows.end - 1).begin, keys_of_query(m, rows.begin).end};
}

// Queries that see at least one key of `columns` (hull).
HEDDLE_HD constexpr Range queries_of_keys(const AttentionMask& m, Range columns) {
  return {queries_of_key(m, columns.begin).begin, queries_of_key(m, columns.end - 1).end};
}

// Queries that see every key of `columns`; may be empty.
HEDDLE_HD constexpr Range common_queries_of_keys(const AttentionMask& m, Range columns) {
  return {queries_of_key(m, columns.end - 1).begin, queries_of_key(m, columns.begin).end};
}

// Blocks of a fixed size along one axis that a tile of the other axis must visit.
struct BlockRange {
  Range visit;     // block numbers to visit
  Range unmasked;  // sub-range in which every pair of the tile is visible: no compare needed there
};

// `hull`: visible to some row of the tile; `common`: visible to all; `len`: length of the axis. A
// block that reaches past the axis is never counted as unmasked.
HEDDLE_HD constexpr BlockRange block_range(Range hull, Range common, int64_t block) {
  BlockRange blocks;
  if (hull.empty()) return blocks;
  blocks.visit = {hull.begin / block, ceil_div(hull.end, block)};
  const Range inner = common.empty() ? Range{hull.begin, hull.begin} : common;
  blocks.unmasked = intersect(blocks.visit, {ceil_div(inner.begin, block), inner.end / block});
  if (blocks.unmasked.empty()) blocks.unmasked = {blocks.visit.begin, blocks.visit.begin};
  return blocks;
}

// Forward and dQ direction: key blocks for the query tile `rows`.
HEDDLE_HD constexpr BlockRange key_blocks(const AttentionMask& m, Range rows, int64_t block) {
  return block_range(keys_of_queries(m, rows), common_keys_of_queries(m, rows), block);
}

// dK/dV direction: query blocks for the key tile `columns`.
HEDDLE_HD constexpr BlockRange query_blocks(const AttentionMask& m, Range columns, int64_t block) {
  return block_range(queries_of_keys(m, columns), common_queries_of_keys(m, columns), block);
}

// Sum over i in [0, n) of clamp(i + shift, 0, cap).
HEDDLE_HD constexpr int64_t sum_clamped_ramp(int64_t n, int64_t shift, int64_t cap) {
  const int64_t rise = clamp_i64(-shift, 0, n);          // rows before `rise` add 0
  const int64_t flat = clamp_i64(cap - shift, rise, n);  // rows from `flat` on add cap
  const int64_t ramp = flat - rise;
  const int64_t first = rise + shift;
  return (ramp > 0 ? ramp * first + ramp * (ramp - 1) / 2 : 0) + (n - flat) * cap;
}

// Visible (query, key) pairs of the queries [0, rows) of one head, in closed form.
HEDDLE_HD constexpr int64_t visible_pairs(const AttentionMask& m, int64_t rows) {
  const int64_t self0 = m.q_pos0 - m.k_pos0;
  const int64_t ends = m.causal ? sum_clamped_ramp(rows, self0 + 1, m.k_len) : rows * m.k_len;
  const int64_t begins =
      m.window_left < 0 ? 0 : sum_clamped_ramp(rows, self0 - m.window_left, m.k_len);
  // begin <= end holds row by row: when not causal, end is k_len; else self - W < self + 1.
  return ends - begins;
}

HEDDLE_HD constexpr int64_t visible_pairs(const AttentionMask& m) {
  return visible_pairs(m, m.q_len);
}

}  // namespace heddle::kernels
