/* A plugin that was not linked with what it calls. */
#include "plugins/abi/heddle_attention.h"

void heddle_fixture_nowhere(void);
HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                                        heddle_text* err);
const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                          heddle_text* err) {
  (void)host;
  (void)err;
  heddle_fixture_nowhere();
  return 0;
}
