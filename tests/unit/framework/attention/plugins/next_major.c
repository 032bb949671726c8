/* A plugin from the future: it speaks ABI major 2 only. */
#include "plugins/abi/heddle_attention.h"

HEDDLE_EXPORT const void* heddle_attention_plugin_v2(const heddle_host* host, heddle_text* err);
const void* heddle_attention_plugin_v2(const heddle_host* host, heddle_text* err) {
  (void)host;
  (void)err;
  return 0;
}
