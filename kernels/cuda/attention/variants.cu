#include "kernels/cuda/attention/enqueue.cuh"
#include "kernels/cuda/attention/launchers.h"
#include "kernels/cuda/attention/plain.cuh"

namespace heddle::kernels::cuda {
namespace {

using enum Operation;
using enum Element;

constexpr auto kTile = plain::kTile;
constexpr auto kWarps = plain::kThreads / 32;

// clang-format off
const Variant kVariants[] = {
  // name             op         element arch  D<=  D%  align  same   tile: rows keys warps, shared memory          workspace                     run
  //                                                           bits
  // Tensor cores of sm_90 (wgmma, TMA): rows with arch 90 go here, before those that they surpass.
  // No tensor core:
  {"plain_f32_d64",   kForward,  kF32,   70,   64,  1,  4, true,  kTile, kTile, kWarps, plain::kAttendBytes<64>,    no_workspace,                 Plain<64>::forward},
  {"plain_f32_d128",  kForward,  kF32,   70,  128,  1,  4, true,  kTile, kTile, kWarps, plain::kAttendBytes<128>,   no_workspace,                 Plain<128>::forward},
  {"plain_f32_d256",  kForward,  kF32,   70,  256,  1,  4, true,  kTile, kTile, kWarps, plain::kAttendBytes<256>,   no_workspace,                 Plain<256>::forward},
  {"plain_f32_d64",   kBackward, kF32,   70,   64,  1,  4, true,  kTile, kTile, kWarps, plain::kBackwardBytes<64>,  delta_workspace,              Plain<64>::backward},
  {"plain_f32_d128",  kBackward, kF32,   70,  128,  1,  4, true,  kTile, kTile, kWarps, plain::kBackwardBytes<128>, delta_workspace,              Plain<128>::backward},
  {"plain_f32_d256",  kBackward, kF32,   70,  256,  1,  4, true,  kTile, kTile, kWarps, plain::kBackwardBytes<256>, delta_workspace,              Plain<256>::backward},
  {"plain_f32_d64",   kDecode,   kF32,   70,   64,  1,  4, true,  kTile, kTile, kWarps, plain::kAttendBytes<64>,    Plain<64>::decode_workspace,  Plain<64>::decode},
  {"plain_f32_d128",  kDecode,   kF32,   70,  128,  1,  4, true,  kTile, kTile, kWarps, plain::kAttendBytes<128>,   Plain<128>::decode_workspace, Plain<128>::decode},
  {"plain_f32_d256",  kDecode,   kF32,   70,  256,  1,  4, true,  kTile, kTile, kWarps, plain::kAttendBytes<256>,   Plain<256>::decode_workspace, Plain<256>::decode},
};
// clang-format on

}  // namespace

std::span<const Variant> variants() {
  return kVariants;
}

Misfit misfit(const Variant& v, const AttentionProblem& p) {
  if (v.op != p.op) return Misfit::kOperation;
  if (v.element != p.element) return Misfit::kElement;
  if (p.arch < v.least_arch) return Misfit::kArch;
  if (p.head_dim > v.most_head_dim || p.head_dim % v.head_dim_multiple != 0) {
    return Misfit::kHeadDim;
  }
  if (p.align_bytes < v.align_bytes) return Misfit::kAlignment;
  if (p.deterministic && !v.deterministic) return Misfit::kDeterminism;
  if (v.shared_bytes > p.shared_limit) return Misfit::kShared;
  return Misfit::kNone;
}

const Variant* choose(const AttentionProblem& problem) {
  for (const Variant& v : kVariants) {
    if (misfit(v, problem) == Misfit::kNone) return &v;
  }
  return nullptr;
}

// Enough blocks for twice the SMs, each with at least two blocks of keys; one when the rows alone
// fill the device or there is little to share. A window bounds the keys that a step can see.
int decode_splits(const AttentionProblem& p, int tile_rows, int tile_keys) {
  const int64_t tiles = query_tiles(p, tile_rows);
  int64_t keys = p.mask.k_len;
  if (p.mask.window_left >= 0 && p.mask.window_left < keys) {
    keys = min_i64(keys, p.mask.window_left + p.mask.q_len);
  }
  const int64_t blocks = ceil_div(keys, tile_keys);
  if (tiles == 0 || blocks <= 4 || tiles * 5 >= int64_t{4} * p.sms) return 1;
  constexpr int64_t kMostSplits = 64;
  return static_cast<int>(
      min_i64(min_i64(ceil_div(int64_t{2} * p.sms, tiles), blocks / 2), kMostSplits));
}

int64_t grid_blocks(const Variant& v, const AttentionProblem& p) {
  const int64_t splits = p.op == Operation::kDecode ? decode_splits(p, v.rows, v.keys) : 1;
  const int64_t queries = query_tiles(p, v.rows) * splits;
  return p.op == Operation::kBackward ? max_i64(queries, key_tiles(p, v.keys)) : queries;
}

size_t no_workspace(const AttentionProblem&) {
  return 0;
}
size_t delta_workspace(const AttentionProblem& p) {
  Pieces pieces(nullptr);
  pieces.floats(query_rows(p));
  return pieces.used();
}
size_t delta_and_dq_workspace(const AttentionProblem& p) {
  Pieces pieces(nullptr);
  pieces.floats(query_rows(p));
  pieces.floats(query_rows(p) * p.head_dim);
  return pieces.used();
}

}  // namespace heddle::kernels::cuda
