/* The header as a C11 author sees it, against the published layout. */
#include "plugins/abi/heddle_attention.h"

#include <stddef.h>

#include "tests/unit/plugins/abi/abi_values.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type);
#define FIELD(type, name, offset, bytes)                                                  \
  _Static_assert(offsetof(type, name) == (offset), "offset of " #type "." #name);         \
  _Static_assert(sizeof(((type*)0)->name) == (bytes), "size of " #type "." #name);
#include "tests/unit/plugins/abi/layout_v1_0.inc"
#undef SIZE
#undef FIELD

#define VALUE(name, number) _Static_assert((name) == (number), #name);
HEDDLE_ABI_VALUES(VALUE)
#undef VALUE

uint64_t heddle_required_features_in_c(const heddle_attention_problem* problem);
uint64_t heddle_required_features_in_c(const heddle_attention_problem* problem) {
  return heddle_attention_required_features(problem);
}
