// cuda_flash with one mistake, for tests that have to notice it. HEDDLE_MUTANT, read at every call,
// names the mistake; without it the plugin is as good as cuda_flash, which is how it passes the
// probe.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "plugins/abi/heddle_attention.hpp"

extern "C" const heddle_attention_plugin* cuda_flash_plugin_v1(const heddle_host* host,
                                                               heddle_text* err);

namespace {

const heddle_attention_plugin* inner;

bool mutant(std::string_view name) {
  const char* asked = std::getenv("HEDDLE_MUTANT");
  return asked != nullptr && name == asked;
}

heddle_attention_problem mutated(const heddle_attention_problem* problem) {
  heddle_attention_problem p{};
  std::memcpy(&p, problem, problem->struct_size < sizeof p ? problem->struct_size : sizeof p);
  if (mutant("window")) p.window_left = -1;  // S layers run as L
  if (mutant("scale")) p.scale = 1.0f / static_cast<float>(p.head_dim);
  return p;
}

uint32_t forward(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                 const heddle_attention_call* call) {
  const heddle_attention_problem p = mutated(problem);
  return inner->forward(ctx, &p, call);
}

// What the framework hands over in bf16 are copies, dense ones.
uint32_t backward(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                  const heddle_attention_call* call) {
  const heddle_attention_problem p = mutated(problem);
  const uint32_t status = inner->backward(ctx, &p, call);
  if (status != HEDDLE_OK || !mutant("dv")) return status;
  const auto bytes = static_cast<size_t>(p.batch * p.k_len * p.n_kv_head * p.head_dim) * 2;
  return cudaMemsetAsync(call->dv, 0, bytes, static_cast<cudaStream_t>(call->stream)) == cudaSuccess
             ? HEDDLE_OK
             : HEDDLE_DEVICE_ERROR;
}

}  // namespace

extern "C" HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(
    const heddle_host* host, heddle_text* err) {
  inner = cuda_flash_plugin_v1(host, err);
  if (!inner) return nullptr;
  static heddle_attention_plugin table = *inner;
  table.name = "cuda_flash_mutant";
  table.forward = forward;
  table.backward = backward;
  return &table;
}
