// cuda_flash with the mistake that most public bug reports are about: its window shows one key too
// many.
#include "plugins/abi/heddle_attention.hpp"

extern "C" const heddle_attention_plugin* cuda_flash_plugin_v1(const heddle_host* host,
                                                               heddle_text* err);

namespace {

const heddle_attention_plugin* inner;

template <uint32_t (*heddle_attention_plugin::*kFunction)(
    heddle_attention_ctx*, const heddle_attention_problem*, const heddle_attention_call*)>
uint32_t wider(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
               const heddle_attention_call* call) {
  heddle_attention_problem p = *heddle::attention::Problem(problem);
  if (p.window_left >= 0) ++p.window_left;
  return (inner->*kFunction)(ctx, &p, call);
}

}  // namespace

extern "C" HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(
    const heddle_host* host, heddle_text* err) {
  inner = cuda_flash_plugin_v1(host, err);
  if (!inner) return nullptr;
  static heddle_attention_plugin table = *inner;
  table.name = "off_by_one";
  table.forward = wider<&heddle_attention_plugin::forward>;
  table.backward = wider<&heddle_attention_plugin::backward>;
  table.decode = wider<&heddle_attention_plugin::decode>;
  return &table;
}
