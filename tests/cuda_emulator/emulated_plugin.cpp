// cuda_flash on the emulator, as a plugin for the CPU: what lets the conformance suite, which runs
// on host memory, check it. HEDDLE_EMULATED_DTYPE (f32, bf16 or f16) leaves one data type of it, so
// that the suite, which prefers fp32, tells about the others.
//
// The plugin's own entry is renamed to cuda_flash_plugin_v1 when it is compiled for this.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cuda_emulator.h"
#include "plugins/abi/heddle_attention.hpp"

extern "C" const heddle_attention_plugin* cuda_flash_plugin_v1(const heddle_host* host,
                                                               heddle_text* err);

namespace {

const heddle_attention_plugin* inner;
cudaStream_t stream;

uint32_t only_dtype() {
  const char* name = std::getenv("HEDDLE_EMULATED_DTYPE");
  const std::string_view text = name ? name : "";
  return text == "f32"    ? HEDDLE_DTYPE_F32
         : text == "bf16" ? HEDDLE_DTYPE_BF16
         : text == "f16"  ? HEDDLE_DTYPE_F16
                          : 0;
}
const uint32_t kOnlyDtype = only_dtype();

heddle_attention_problem on_cuda(const heddle_attention_problem* p) {
  heddle_attention_problem copy{};
  std::memcpy(&copy, p, p->struct_size < sizeof copy ? p->struct_size : sizeof copy);
  if (copy.struct_size > sizeof copy) copy.struct_size = sizeof copy;
  if (copy.device_type == HEDDLE_DEVICE_CPU) copy.device_type = HEDDLE_DEVICE_CUDA;
  return copy;
}

uint32_t create(const heddle_host* host, const heddle_device* device, heddle_attention_ctx** ctx,
                heddle_text* err) {
  heddle_device cuda = *device;
  cuda.type = device->type == HEDDLE_DEVICE_CPU ? HEDDLE_DEVICE_CUDA : HEDDLE_DEVICE_CPU;
  cuda.arch = 80;
  cuda.units = 108;
  cuda.peak_flops = 312e12;
  heddle::emulator::allow_host_memory(true);  // the suite brings guard pages of its own
  if (!stream) (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return inner->create(host, &cuda, ctx, err);
}
void destroy(heddle_attention_ctx* ctx) {
  inner->destroy(ctx);
}

uint32_t query(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
               heddle_attention_verdict* verdict) {
  const heddle_attention_problem p = on_cuda(problem);
  const uint32_t status = inner->query(ctx, &p, verdict);
  if (status != HEDDLE_OK || kOnlyDtype == 0 || p.dtype == kOnlyDtype) return status;
  heddle::attention::Answer(verdict).require(false, HEDDLE_REASON_DTYPE, "dtype", p.dtype,
                                             "in{" + std::to_string(kOnlyDtype) + "}");
  return HEDDLE_OK;
}

template <uint32_t (*heddle_attention_plugin::*kFunction)(
    heddle_attention_ctx*, const heddle_attention_problem*, const heddle_attention_call*)>
uint32_t forward_to(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                    const heddle_attention_call* call) {
  const heddle_attention_problem p = on_cuda(problem);
  heddle_attention_call c{};
  std::memcpy(&c, call, call->struct_size < sizeof c ? call->struct_size : sizeof c);
  if (c.struct_size > sizeof c) c.struct_size = sizeof c;
  c.stream = stream;
  return (inner->*kFunction)(ctx, &p, &c);
}

}  // namespace

extern "C" HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(
    const heddle_host* host, heddle_text* err) {
  inner = cuda_flash_plugin_v1(host, err);
  if (!inner) return nullptr;
  static heddle_attention_plugin table = *inner;
  table.name = "cuda_flash_emulated";
  table.device_type = HEDDLE_DEVICE_CPU;
  table.properties |= HEDDLE_PROP_ALLOCATES;  // the emulator's bookkeeping
  table.create = create;
  table.destroy = destroy;
  table.query = query;
  table.forward = forward_to<&heddle_attention_plugin::forward>;
  table.backward = forward_to<&heddle_attention_plugin::backward>;
  table.decode = forward_to<&heddle_attention_plugin::decode>;
  return &table;
}
