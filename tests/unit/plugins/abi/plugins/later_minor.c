/* A plugin of a minor that does not exist yet: every struct is longer, the table has a function
 * more, features and properties have bits that today's host has never heard of. It reads its new
 * fields by the rule of the header: only below struct_size, and missing ones are zero. */
#define heddle_attention_plugin_v1 attention_of_minor_0
#define FIXTURE_NAME "later_minor"
#include "tests/unit/framework/attention/plugins/naive.c"
#undef heddle_attention_plugin_v1

#define LATER_HINT (UINT64_C(1) << 40)
#define LATER_MEANING (UINT64_C(1) << 20)

typedef struct later_problem {
  heddle_attention_problem base;
  uint64_t drop_every; /* a new meaning: 0 is what was the case before */
  uint64_t more;
} later_problem;

typedef struct later_call {
  heddle_attention_call base;
  const void* mask_bits;
} later_call;

typedef struct later_plugin {
  heddle_attention_plugin base;
  uint32_t (*prefetch)(heddle_attention_ctx* ctx);
  uint64_t more;
} later_plugin;

static uint64_t drop_every(const heddle_attention_problem* p) {
  return p->struct_size >= sizeof(later_problem) ? ((const later_problem*)p)->drop_every : 0;
}

static const void* mask_bits(const heddle_attention_call* c) {
  return c->struct_size >= sizeof(later_call) ? ((const later_call*)c)->mask_bits : NULL;
}

static uint32_t later_forward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                              const heddle_attention_call* c) {
  if (drop_every(p) != 0 || mask_bits(c) != NULL) {
    say(c->err, "a host of minor 0 cannot have meant that");
    return HEDDLE_INTERNAL;
  }
  return forward(ctx, p, c);
}

static uint32_t prefetch(heddle_attention_ctx* ctx) {
  (void)ctx;
  return HEDDLE_OK;
}

HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                                        heddle_text* err);
HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                                        heddle_text* err) {
  static later_plugin table;
  table.base = *attention_of_minor_0(host, err);
  table.base.struct_size = sizeof table;
  table.base.abi_minor = HEDDLE_ATTENTION_ABI_MINOR + 3;
  table.base.problem_size = sizeof(later_problem);
  table.base.call_size = sizeof(later_call);
  table.base.known_features |= LATER_HINT | LATER_MEANING;
  table.base.properties |= 1u << 17;
  table.base.forward = later_forward;
  table.prefetch = prefetch;
  return &table.base;
}
