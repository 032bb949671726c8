#include "plugins/conformance/rules.h"

#include <chrono>
#include <exception>

#include "plugins/conformance/faults.h"
#include "plugins/conformance/host.h"

namespace heddle::conformance {

const std::vector<Rule>& all_rules() {
  static const std::vector<Rule> rules = {
      {"TABLE", "the function table", "names, sizes and functions are as the header says",
       check_table},
      {"CNT", "keys counted exactly",
       "with k = 0 and v = key index, out is the mean of the visible keys and lse the ln of their "
       "number",
       check_count},
      {"HOT", "keys named exactly", "with one-hot values a row shows which keys it saw", check_hot},
      {"HEAD", "query heads and kv heads", "query head h reads kv head h / (n_head / n_kv_head)",
       check_heads},
      {"DV1", "gradients counted exactly", "with q = k = 0 and dout = 1, dv counts rows",
       check_unit_gradients},
      {"LONG", "more than 4096 tokens", "the exact counts hold for long sequences too", check_long},
      {"RAND", "random values", "all results within G32 and GLSE of the fp64 definition",
       check_random},
      {"POS", "q_len other than k_len", "positions are absolute, forward and backward",
       check_positions},
      {"NOMASK", "no causal mask", "mask NONE shows later keys, with and without a window",
       check_no_mask},
      {"WIDE", "windows as wide as the sequence", "a window is unlimited only when nothing is cut",
       check_wide_window},
      {"EMPTY", "rows that see nothing", "out 0, lse -inf, gradients 0; lengths of 0",
       check_empty_rows},
      {"GQA", "grouped heads", "any n_head / n_kv_head, odd ones too", check_groups},
      {"DIM", "head dimensions", "every head_dim that query() accepts", check_head_dims},
      {"SCALE", "the scale", "problem.scale is used, whatever head_dim is", check_scale},
      {"LARGE", "large scores", "scores of thousands neither overflow nor lose the row",
       check_large_scores},
      {"HARD", "adversarial values", "equal keys, denormals, means of 8, one-hot rows",
       check_adversarial},
      {"DTYPE", "data types", "every data type that query() accepts", check_dtypes},
      {"OWNLSE", "backward after its own forward", "gradients from the plugin's own out and lse",
       check_own_lse},
      {"KVLEN", "cache lengths", "every batch row of a decode step has its own length",
       check_lengths},
      {"CHUNK", "prefill in chunks", "decode steps of any size add up to one forward",
       check_chunks},
      {"TAIL", "cache tails", "bytes at kv_len and behind never matter", check_tails},
      {"BEHIND", "keys behind the window", "a single-token decode ignores NaN outside its window",
       check_behind_window},
      {"GUARD", "guard pages", "no byte outside of any buffer is read or written", check_guards},
      {"STRIDE", "layouts", "strided and interleaved tensors, gaps keep their bytes",
       check_layouts},
      {"POISON", "previous contents", "outputs and workspace are arbitrary before a call",
       check_poison},
      {"REUSE", "a workspace used before", "a second call does not see the first", check_reuse},
      {"WORK", "the workspace", "as much as promised is enough, max_workspace is kept",
       check_workspace},
      {"WORKERS", "workers and orders", "results hold for any split of parallel_for",
       check_workers},
      {"DET", "determinism", "the same bits for any number of workers, when promised",
       check_determinism},
      {"CONC", "calls at the same time", "several threads, on one context when CTX_CONCURRENT",
       check_concurrency},
      {"ALLOC", "no allocation", "calls allocate nothing unless ALLOCATES", check_allocation},
      {"THREADS", "no threads", "calls start no thread unless OWN_THREADS", check_threads},
      {"OUTPUT", "no output", "calls print nothing", check_output},
      {"STATE", "the process", "signals, floating point, locale, directory, environment stay",
       check_process_state},
      {"CTX", "contexts", "many can be made and destroyed, foreign devices are refused",
       check_contexts},
      {"QUERY", "promises", "a yes works, a no says field, got and want", check_promises},
      {"WANT", "remedies", "what a reason wants makes the reason disappear", check_wants},
      {"INVALID", "invalid problems", "what the header forbids is refused", check_invalid},
      {"PURE", "query() is a function", "the same answer every time, from every thread",
       check_pure_query},
  };
  return rules;
}

const Rule* find_rule(std::string_view id) {
  for (const Rule& rule : all_rules()) {
    if (id == rule.id) return &rule;
  }
  return nullptr;
}

RuleResult run_rule(Session& session, const Rule& rule, const Options& options) {
  RuleResult result;
  result.id = rule.id;
  result.name = rule.name;
  const auto start = std::chrono::steady_clock::now();
  Check check(session, options, result);
  try {
    rule.run(check);
  } catch (const std::exception& e) {
    check.expect(false, e.what());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!result.findings.empty()) {
    result.status = Status::kFailed;
  } else if (result.executed_cases() > 0) {
    result.status = Status::kPassed;
  } else if (result.skip_reason.empty()) {
    result.skip_reason = "nothing to run";
  }
  if (result.status != Status::kSkipped) result.skip_reason.clear();
  return result;
}

void prepare_process() {
  install_fault_handlers();
  start_host_pool();
}

}  // namespace heddle::conformance
