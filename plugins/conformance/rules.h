// The rules: what a plugin has to keep, each checked by itself.
#pragma once

#include <string_view>
#include <vector>

#include "plugins/conformance/check.h"

namespace heddle::conformance {

struct Rule {
  const char* id;    // what --only names
  const char* name;  // a few words
  const char* what;  // one sentence for people
  void (*run)(Check& check);
};

// All rules in the order of a report. Both levels run all of them, on smaller or larger grids.
const std::vector<Rule>& all_rules();
const Rule* find_rule(std::string_view id);

// Runs one rule on a plugin in this process. Never throws for what the plugin does; may not return
// when the plugin exits or hangs.
RuleResult run_rule(Session& session, const Rule& rule, const Options& options);

// Once per process before anything else of the suite: fault handlers and the host's threads.
void prepare_process();

// ---- the functions of the table, by file ------------------------------------------------------

// rules_probes.cpp
void check_count(Check& check);
void check_hot(Check& check);
void check_heads(Check& check);
void check_unit_gradients(Check& check);
void check_long(Check& check);
// rules_numerics.cpp
void check_random(Check& check);
void check_positions(Check& check);
void check_no_mask(Check& check);
void check_wide_window(Check& check);
void check_empty_rows(Check& check);
void check_groups(Check& check);
void check_head_dims(Check& check);
void check_scale(Check& check);
void check_large_scores(Check& check);
void check_adversarial(Check& check);
void check_dtypes(Check& check);
void check_own_lse(Check& check);
// rules_decode.cpp
void check_lengths(Check& check);
void check_chunks(Check& check);
void check_tails(Check& check);
void check_behind_window(Check& check);
// rules_memory.cpp
void check_guards(Check& check);
void check_layouts(Check& check);
void check_poison(Check& check);
void check_reuse(Check& check);
void check_workspace(Check& check);
// rules_execution.cpp
void check_workers(Check& check);
void check_determinism(Check& check);
void check_concurrency(Check& check);
// rules_conduct.cpp
void check_allocation(Check& check);
void check_threads(Check& check);
void check_output(Check& check);
void check_process_state(Check& check);
void check_contexts(Check& check);
// rules_query.cpp
void check_table(Check& check);
void check_promises(Check& check);
void check_wants(Check& check);
void check_invalid(Check& check);
void check_pure_query(Check& check);

}  // namespace heddle::conformance
