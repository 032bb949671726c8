// The ABI's problem, checked and translated for the kernels, and the answer to query().
#pragma once

#include <cstdint>

#include "kernels/cpu/attention/attention.h"
#include "plugins/abi/heddle_attention.h"

namespace heddle::cpu_sdpa {

inline constexpr uint64_t kKnownFeatures = HEDDLE_FEATURE_CAUSAL | HEDDLE_FEATURE_WINDOW_LEFT |
                                           HEDDLE_FEATURE_GQA | HEDDLE_FEATURE_POS_OFFSET |
                                           HEDDLE_FEATURE_LSE_OUT | HEDDLE_FEATURE_DETERMINISTIC |
                                           HEDDLE_FEATURE_KV_LEN;

// What a context knows about its machine.
struct Machine {
  const kernels::cpu::AttentionKernels* kernels;
  uint32_t workers;
  double flops_per_second;  // of all workers together
};

// The same problem in the kernels' terms. Only for problems that answer() accepts.
kernels::cpu::AttentionProblem translate(const heddle_attention_problem& problem);

kernels::cpu::Launch plan(const Machine& machine, uint32_t op,
                          const kernels::cpu::AttentionProblem& problem);

// Workers that have something to do: no more areas than tasks are needed.
uint32_t useful_workers(const Machine& machine, const kernels::cpu::Launch& launch);

// How many workers can have their own area in a workspace of that size; 0: it is too small. At most
// `wanted`.
uint32_t workers_that_fit(const kernels::cpu::Launch& launch, uint64_t workspace_bytes,
                          uint32_t wanted);

// Bytes of a workspace for `workers`.
uint64_t workspace_bytes(const kernels::cpu::Launch& launch, uint32_t workers);

// Fills the verdict: yes with size, time and kernel, or no with every reason found.
void answer(const Machine& machine, const heddle_attention_problem& problem,
            heddle_attention_verdict* verdict);

// Writes a message to the host's buffer, cut to its capacity. printf format.
[[gnu::format(printf, 2, 3)]] void write_text(heddle_text* text, const char* format, ...);

}  // namespace heddle::cpu_sdpa
