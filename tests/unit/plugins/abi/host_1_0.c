#include "tests/unit/plugins/abi/host_1_0.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/plugins/abi/published/1.0/heddle_attention.h"

static void log_nothing(void* user, uint32_t level, const char* utf8) {
  (void)user, (void)level, (void)utf8;
}
static uint32_t one_worker(void* user) {
  (void)user;
  return 1;
}
static void run_here(void* user, int64_t n, int64_t grain, heddle_parallel_body body, void* arg) {
  (void)user, (void)grain;
  if (n > 0) body(arg, 0, n, 0);
}

static const heddle_host kHost = {sizeof(heddle_host), 0,          "the first host", "1", NULL,
                                  log_nothing,         one_worker, run_here};

static heddle_attention_problem problem_of(int64_t tokens, int32_t heads, int32_t dim,
                                           int64_t window_left) {
  const heddle_strides strides = {tokens * heads * dim, heads * dim, dim};
  heddle_attention_problem p;
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p;
  p.op = HEDDLE_OP_FORWARD;
  p.device_type = HEDDLE_DEVICE_CPU;
  p.dtype = HEDDLE_DTYPE_F32;
  p.mask = HEDDLE_MASK_CAUSAL;
  p.flags = HEDDLE_FLAG_LSE_OUT;
  p.align_bytes = 4;
  p.batch = 1;
  p.q_len = p.k_len = tokens;
  p.n_head = p.n_kv_head = heads;
  p.head_dim = dim;
  p.scale = 1.0f;
  p.window_left = window_left;
  p.q = p.k = p.v = p.out = strides;
  p.lse_stride_batch = heads * tokens;
  p.lse_stride_head = tokens;
  p.required_features = heddle_attention_required_features(&p);
  return p;
}

const char* heddle_forward_by_host_1_0(void* entry, int64_t tokens, int32_t heads, int32_t dim,
                                       int64_t window_left, const float* q, const float* k,
                                       const float* v, float* out, float* lse) {
  static char text[256];
  heddle_text err = {text, sizeof text, 0};
  const heddle_device device = {sizeof device, HEDDLE_DEVICE_CPU, 0, 0, 1, 0, 1e10};
  const heddle_attention_problem p = problem_of(tokens, heads, dim, window_left);
  heddle_attention_verdict verdict;
  heddle_attention_call call;
  heddle_attention_ctx* ctx = NULL;
  void* workspace = NULL;
  heddle_attention_entry_v1 enter;
  memcpy(&enter, &entry, sizeof enter);
  const heddle_attention_plugin* plugin = enter(&kHost, &err);
  if (plugin == NULL) return text;
  if (plugin->magic != HEDDLE_ATTENTION_MAGIC || plugin->abi_major != 1) return "another major";
  if (plugin->struct_size < sizeof *plugin) return "a table that is too small";
  if (p.required_features & HEDDLE_FEATURE_MUST_UNDERSTAND & ~plugin->known_features) {
    return "a feature of minor 0 is not known";
  }
  if (plugin->create(&kHost, &device, &ctx, &err) != HEDDLE_OK) return text;
  memset(&verdict, 0, sizeof verdict);
  verdict.struct_size = sizeof verdict;
  if (plugin->query(ctx, &p, &verdict) != HEDDLE_OK || !verdict.supported) return "refused";
  if (verdict.workspace_bytes > 0) {
    workspace = aligned_alloc(4096, (verdict.workspace_bytes + 4095) / 4096 * 4096);
  }
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.q = q;
  call.k = k;
  call.v = v;
  call.out = out;
  call.lse = lse;
  call.workspace = workspace;
  call.workspace_bytes = verdict.workspace_bytes;
  call.err = &err;
  const uint32_t status = plugin->forward(ctx, &p, &call);
  free(workspace);
  plugin->destroy(ctx);
  return status == HEDDLE_OK ? NULL : text;
}
