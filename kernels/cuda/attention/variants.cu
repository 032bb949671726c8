#include "kernels/cuda/attention/backward_mma.cuh"
#include "kernels/cuda/attention/enqueue.cuh"
#include "kernels/cuda/attention/forward_mma.cuh"
#include "kernels/cuda/attention/launchers.h"
#include "kernels/cuda/attention/plain.cuh"

namespace heddle::kernels::cuda {
namespace {

using enum Operation;
using enum Element;

using bf16 = __nv_bfloat16;
using half = __half;

template <class T, int kDim, int kWarps>
constexpr size_t fwd_bytes = ForwardTile<T, kDim, kWarps>::kBytes;
template <class T, int kDim>
constexpr size_t bwd_bytes = BackwardTile<T, kDim>::kBytes > BackwardTile<T, kDim>::kDqBytes
                                 ? BackwardTile<T, kDim>::kBytes
                                 : BackwardTile<T, kDim>::kDqBytes;

// D: head_dims that a row takes, and align what of addresses; same: the same bits every time; rows,
// keys, warps: of a tile.
// clang-format off
const Variant kVariants[] = {
  // name                   op         element arch D <= D % align same   rows keys warps shared memory               workspace                                run
  // sm_90 (wgmma, TMA): rows with arch 90 go here, before those that they surpass.
  // bf16, mma.sync of sm_80, fp32 sums
  {"mma_bf16_d64",          kForward,  kBf16,  80,  64,  8,  16,   true,  64,  64,  4,    fwd_bytes<bf16, 64, 4>,     no_workspace,                            MmaForward<bf16, 64>::forward},
  {"mma_bf16_d96",          kForward,  kBf16,  80,  96,  8,  16,   true,  64,  64,  4,    fwd_bytes<bf16, 96, 4>,     no_workspace,                            MmaForward<bf16, 96>::forward},
  {"mma_bf16_d128",         kForward,  kBf16,  80,  128, 8,  16,   true,  64,  64,  4,    fwd_bytes<bf16, 128, 4>,    no_workspace,                            MmaForward<bf16, 128>::forward},
  {"mma_bf16_d256",         kForward,  kBf16,  80,  256, 8,  16,   true,  64,  32,  4,    fwd_bytes<bf16, 256, 4>,    no_workspace,                            MmaForward<bf16, 256>::forward},
  {"mma_bf16_d64_atomic",   kBackward, kBf16,  80,  64,  8,  16,   false, 64,  64,  4,    bwd_bytes<bf16, 64>,        delta_and_dq_workspace,                  MmaBackward<bf16, 64>::with_atomics},
  {"mma_bf16_d96_atomic",   kBackward, kBf16,  80,  96,  8,  16,   false, 64,  64,  4,    bwd_bytes<bf16, 96>,        delta_and_dq_workspace,                  MmaBackward<bf16, 96>::with_atomics},
  {"mma_bf16_d128_atomic",  kBackward, kBf16,  80,  128, 8,  16,   false, 64,  64,  4,    bwd_bytes<bf16, 128>,       delta_and_dq_workspace,                  MmaBackward<bf16, 128>::with_atomics},
  {"mma_bf16_d64_ordered",  kBackward, kBf16,  80,  64,  8,  16,   true,  64,  64,  4,    bwd_bytes<bf16, 64>,        delta_workspace,                         MmaBackward<bf16, 64>::in_order},
  {"mma_bf16_d96_ordered",  kBackward, kBf16,  80,  96,  8,  16,   true,  64,  64,  4,    bwd_bytes<bf16, 96>,        delta_workspace,                         MmaBackward<bf16, 96>::in_order},
  {"mma_bf16_d128_ordered", kBackward, kBf16,  80,  128, 8,  16,   true,  64,  64,  4,    bwd_bytes<bf16, 128>,       delta_workspace,                         MmaBackward<bf16, 128>::in_order},
  {"mma_bf16_d64_split",    kDecode,   kBf16,  80,  64,  8,  16,   true,  16,  64,  1,    fwd_bytes<bf16, 64, 1>,     MmaForward<bf16, 64>::decode_workspace,  MmaForward<bf16, 64>::decode},
  {"mma_bf16_d96_split",    kDecode,   kBf16,  80,  96,  8,  16,   true,  16,  64,  1,    fwd_bytes<bf16, 96, 1>,     MmaForward<bf16, 96>::decode_workspace,  MmaForward<bf16, 96>::decode},
  {"mma_bf16_d128_split",   kDecode,   kBf16,  80,  128, 8,  16,   true,  16,  64,  1,    fwd_bytes<bf16, 128, 1>,    MmaForward<bf16, 128>::decode_workspace, MmaForward<bf16, 128>::decode},
  {"mma_bf16_d256_split",   kDecode,   kBf16,  80,  256, 8,  16,   true,  16,  32,  1,    fwd_bytes<bf16, 256, 1>,    MmaForward<bf16, 256>::decode_workspace, MmaForward<bf16, 256>::decode},
  // fp16, mma.sync of sm_80, fp32 sums
  {"mma_fp16_d64",          kForward,  kF16,   80,  64,  8,  16,   true,  64,  64,  4,    fwd_bytes<half, 64, 4>,     no_workspace,                            MmaForward<half, 64>::forward},
  {"mma_fp16_d96",          kForward,  kF16,   80,  96,  8,  16,   true,  64,  64,  4,    fwd_bytes<half, 96, 4>,     no_workspace,                            MmaForward<half, 96>::forward},
  {"mma_fp16_d128",         kForward,  kF16,   80,  128, 8,  16,   true,  64,  64,  4,    fwd_bytes<half, 128, 4>,    no_workspace,                            MmaForward<half, 128>::forward},
  {"mma_fp16_d256",         kForward,  kF16,   80,  256, 8,  16,   true,  64,  32,  4,    fwd_bytes<half, 256, 4>,    no_workspace,                            MmaForward<half, 256>::forward},
  {"mma_fp16_d64_atomic",   kBackward, kF16,   80,  64,  8,  16,   false, 64,  64,  4,    bwd_bytes<half, 64>,        delta_and_dq_workspace,                  MmaBackward<half, 64>::with_atomics},
  {"mma_fp16_d96_atomic",   kBackward, kF16,   80,  96,  8,  16,   false, 64,  64,  4,    bwd_bytes<half, 96>,        delta_and_dq_workspace,                  MmaBackward<half, 96>::with_atomics},
  {"mma_fp16_d128_atomic",  kBackward, kF16,   80,  128, 8,  16,   false, 64,  64,  4,    bwd_bytes<half, 128>,       delta_and_dq_workspace,                  MmaBackward<half, 128>::with_atomics},
  {"mma_fp16_d64_ordered",  kBackward, kF16,   80,  64,  8,  16,   true,  64,  64,  4,    bwd_bytes<half, 64>,        delta_workspace,                         MmaBackward<half, 64>::in_order},
  {"mma_fp16_d96_ordered",  kBackward, kF16,   80,  96,  8,  16,   true,  64,  64,  4,    bwd_bytes<half, 96>,        delta_workspace,                         MmaBackward<half, 96>::in_order},
  {"mma_fp16_d128_ordered", kBackward, kF16,   80,  128, 8,  16,   true,  64,  64,  4,    bwd_bytes<half, 128>,       delta_workspace,                         MmaBackward<half, 128>::in_order},
  {"mma_fp16_d64_split",    kDecode,   kF16,   80,  64,  8,  16,   true,  16,  64,  1,    fwd_bytes<half, 64, 1>,     MmaForward<half, 64>::decode_workspace,  MmaForward<half, 64>::decode},
  {"mma_fp16_d96_split",    kDecode,   kF16,   80,  96,  8,  16,   true,  16,  64,  1,    fwd_bytes<half, 96, 1>,     MmaForward<half, 96>::decode_workspace,  MmaForward<half, 96>::decode},
  {"mma_fp16_d128_split",   kDecode,   kF16,   80,  128, 8,  16,   true,  16,  64,  1,    fwd_bytes<half, 128, 1>,    MmaForward<half, 128>::decode_workspace, MmaForward<half, 128>::decode},
  {"mma_fp16_d256_split",   kDecode,   kF16,   80,  256, 8,  16,   true,  16,  32,  1,    fwd_bytes<half, 256, 1>,    MmaForward<half, 256>::decode_workspace, MmaForward<half, 256>::decode},
  // fp32 without tensor cores
  {"plain_f32_d64",         kForward,  kF32,   70,  64,  1,  4,    true,  32,  32,  4,    plain::kAttendBytes<64>,    no_workspace,                            Plain<64>::forward},
  {"plain_f32_d128",        kForward,  kF32,   70,  128, 1,  4,    true,  32,  32,  4,    plain::kAttendBytes<128>,   no_workspace,                            Plain<128>::forward},
  {"plain_f32_d256",        kForward,  kF32,   70,  256, 1,  4,    true,  32,  32,  4,    plain::kAttendBytes<256>,   no_workspace,                            Plain<256>::forward},
  {"plain_f32_d64",         kBackward, kF32,   70,  64,  1,  4,    true,  32,  32,  4,    plain::kBackwardBytes<64>,  delta_workspace,                         Plain<64>::backward},
  {"plain_f32_d128",        kBackward, kF32,   70,  128, 1,  4,    true,  32,  32,  4,    plain::kBackwardBytes<128>, delta_workspace,                         Plain<128>::backward},
  {"plain_f32_d256",        kBackward, kF32,   70,  256, 1,  4,    true,  32,  32,  4,    plain::kBackwardBytes<256>, delta_workspace,                         Plain<256>::backward},
  {"plain_f32_d64",         kDecode,   kF32,   70,  64,  1,  4,    true,  32,  32,  4,    plain::kAttendBytes<64>,    Plain<64>::decode_workspace,             Plain<64>::decode},
  {"plain_f32_d128",        kDecode,   kF32,   70,  128, 1,  4,    true,  32,  32,  4,    plain::kAttendBytes<128>,   Plain<128>::decode_workspace,            Plain<128>::decode},
  {"plain_f32_d256",        kDecode,   kF32,   70,  256, 1,  4,    true,  32,  32,  4,    plain::kAttendBytes<256>,   Plain<256>::decode_workspace,            Plain<256>::decode},
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
