/* A plugin whose dependency lies where the loader does not look. */
#include "plugins/abi/heddle_attention.h"

int heddle_fixture_answer(void);
HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                                        heddle_text* err);
const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                          heddle_text* err) {
  (void)host;
  (void)err;
  (void)heddle_fixture_answer();
  return 0;
}
