// The names of the mutants, in the order of the enumeration.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/conformance/mutants/mutant_plugin.h"

namespace heddle::mutants {
namespace {

constexpr const char* kNames[] = {
    "none",
    "window_plus_one",
    "window_minus_one",
    "window_ignored",
    "window_zero_unlimited",
    "window_from_index",
    "window_from_end",
    "window_both_sides",
    "top_left",
    "bottom_right",
    "causal_strict",
    "causal_plus_one",
    "causal_ignored",
    "mask_always_causal",
    "k_pos_ignored",
    "scale_missing",
    "scale_k_only",
    "scale_own",
    "scale_twice",
    "exp_two",
    "no_max",
    "not_normalised",
    "half_precision",
    "fp16_overflow",
    "hidden_as_zero",
    "empty_nan",
    "empty_uniform",
    "lse_base_two",
    "lse_no_max",
    "lse_empty_inf",
    "lse_empty_zero",
    "lse_stride",
    "head_modulo",
    "head_first",
    "batch_first",
    "odd_group_last",
    "read_past_length",
    "length_of_row_zero",
    "length_before_append",
    "decode_no_causal",
    "tail_times_zero",
    "behind_window_times_zero",
    "newest_missing",
    "no_group_sum",
    "group_mean",
    "dq_no_scale",
    "dk_no_scale",
    "no_delta",
    "dq_skips_block",
    "dv_first_row_missing",
    "dk_accumulates",
    "empty_gradient_nan",
    "dk_dv_swapped",
    "wrong_at_one",
    "wrong_beyond_4096",
    "tail_tile_dropped",
    "wrong_dim_80",
    "int16_index",
    "workspace_overrun",
    "workspace_used",
    "workspace_kept",
    "reads_before",
    "reads_behind",
    "strides_ignored",
    "gap_written",
    "input_changed",
    "last_row_unwritten",
    "zero_assumed",
    "max_workspace_ignored",
    "kv_len_changed",
    "race",
    "not_deterministic",
    "static_buffer",
    "worker_index",
    "one_worker_wrong",
    "allocates",
    "allocates_in_query",
    "maps",
    "thread",
    "hidden_thread",
    "prints",
    "locale",
    "mxcsr",
    "worker_mxcsr",
    "signal_handler",
    "environment",
    "directory",
    "opens_file",
    "throws",
    "context_leaks_file",
    "says_yes_to_all",
    "says_yes_then_refuses",
    "no_reason",
    "wrong_got",
    "want_lies",
    "forgetful_query",
    "verdict_overrun",
    "reasons_overrun",
    "window_two_accepted",
    "groups_accepted",
    "foreign_device",
    "segfault_odd",
    "aborts",
    "exits",
    "hangs",
    "stack_overflow",
};
static_assert(std::size(kNames) == static_cast<size_t>(Mutant::kStackOverflow) + 1);

Mutant find() {
  const char* wanted = std::getenv("HEDDLE_MUTANT");
  if (wanted == nullptr || *wanted == '\0') return Mutant::kNone;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0) return static_cast<Mutant>(i);
  }
  std::fprintf(stderr, "HEDDLE_MUTANT=%s is no mutant\n", wanted);
  std::_Exit(99);
}

}  // namespace

const Mutant kMutant = find();

}  // namespace heddle::mutants
