/* A host that knows nothing but the header of minor 0 as it was published. */
#ifndef HEDDLE_TESTS_HOST_1_0_H
#define HEDDLE_TESTS_HOST_1_0_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Causal self-attention with a window on one batch row of contiguous (T, H, D) tensors with as many
 * kv heads as query heads, scale 1. entry is the address of heddle_attention_plugin_v1. Returns
 * NULL, or what went wrong. */
const char* heddle_forward_by_host_1_0(void* entry, int64_t tokens, int32_t heads, int32_t dim,
                                       int64_t window_left, const float* q, const float* k,
                                       const float* v, float* out, float* lse);

#ifdef __cplusplus
}
#endif

#endif
