// query(), contexts and the table of the mutant plugin.
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/conformance/mutants/mutant_plugin.h"

namespace heddle::mutants {
namespace {

using M = Mutant;

class Reasons {
 public:
  explicit Reasons(heddle_attention_verdict* v) : v_(v) { v_->reason_count = 0; }

  void require(bool ok, uint32_t code, const char* field, int64_t got, const char* want) {
    if (ok) return;
    const uint32_t n = v_->reason_count++;
    if (is(M::kReasonsOverrun) ? v_->reasons == nullptr : n >= v_->reason_capacity) return;
    heddle_attention_reason& r = v_->reasons[is(M::kReasonsOverrun) ? v_->reason_capacity : n];
    r = {};
    r.code = code;
    std::snprintf(r.field, sizeof r.field, "%s", field);
    std::snprintf(r.got, sizeof r.got, "%lld",
                  static_cast<long long>(is(M::kWrongGot) ? got + 1 : got));
    std::snprintf(r.want, sizeof r.want, "%s", want);
  }

 private:
  heddle_attention_verdict* v_;
};

void check(const heddle_attention_problem& p, Reasons& r) {
  if (is(M::kSaysYesToAll)) return;
  r.require(p.device_type == HEDDLE_DEVICE_CPU, HEDDLE_REASON_DEVICE, "device_type", p.device_type,
            "==1");
  r.require(p.dtype == HEDDLE_DTYPE_F32, HEDDLE_REASON_DTYPE, "dtype", p.dtype, "==1");
  r.require(p.mask <= HEDDLE_MASK_CAUSAL, HEDDLE_REASON_MASK, "mask", p.mask, "in{0,1}");
  r.require(p.head_dim >= 1 && p.head_dim <= 256, HEDDLE_REASON_HEAD_DIM, "head_dim", p.head_dim,
            is(M::kWantLies) ? "in[1,512]" : "in[1,256]");
  const bool divides = p.n_kv_head >= 1 && p.n_head % p.n_kv_head == 0;
  r.require(divides || is(M::kGroupsAccepted), HEDDLE_REASON_HEADS, "n_kv_head", p.n_kv_head,
            "divides n_head");
  r.require(p.window_left >= -1 || is(M::kWindowTwoAccepted), HEDDLE_REASON_WINDOW, "window_left",
            p.window_left, ">=-1");
  const bool decode = p.op == HEDDLE_OP_DECODE;
  r.require(!decode || p.q_pos0 == 0, HEDDLE_REASON_POSITION, "q_pos0", p.q_pos0, "==0");
}

uint32_t create(const heddle_host* host, const heddle_device* device, heddle_attention_ctx** ctx,
                heddle_text* err) {
  if (device->type != HEDDLE_DEVICE_CPU && !is(M::kForeignDevice)) {
    const int n = std::snprintf(err->buf, err->cap, "serves the CPU only");
    err->len = static_cast<uint32_t>(n);
    return HEDDLE_REFUSED;
  }
  if (is(M::kContextLeaksFile) && ::open("/dev/null", O_RDONLY) < 0) return HEDDLE_INTERNAL;
  *ctx = new (std::nothrow) heddle_attention_ctx{host, host->num_workers(host->user)};
  return *ctx ? HEDDLE_OK : HEDDLE_OUT_OF_MEMORY;
}

void destroy(heddle_attention_ctx* ctx) {
  delete ctx;
}

}  // namespace

uint32_t query(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
               heddle_attention_verdict* v) {
  static void* volatile kept;
  static int calls = 0;
  Reasons reasons(v);
  check(*p, reasons);
  if (is(M::kAllocatesInQuery)) {
    kept = std::malloc(100);
    std::free(kept);
  }
  v->workspace_bytes = ctx->workers * worker_floats(*p) * sizeof(double);
  v->workspace_align = 64;
  if (is(M::kForgetfulQuery)) v->workspace_bytes += static_cast<uint64_t>(++calls % 3) * 64;
  const uint64_t limit = p->max_workspace;
  char want[40];
  std::snprintf(want, sizeof want, ">=%llu", static_cast<unsigned long long>(v->workspace_bytes));
  reasons.require(limit == 0 || limit >= v->workspace_bytes || is(M::kMaxWorkspaceIgnored),
                  HEDDLE_REASON_WORKSPACE, "max_workspace", static_cast<int64_t>(limit), want);
  v->supported = v->reason_count == 0 ? 1 : 0;
  if (is(M::kNoReason)) v->reason_count = 0;
  v->est_time_us = 0.0;
  std::snprintf(v->kernel, sizeof v->kernel, "naive");
  if (is(M::kVerdictOverrun)) std::memset(v + 1, 0, 8);
  return HEDDLE_OK;
}

namespace {

constexpr uint64_t kKnown = HEDDLE_FEATURE_CAUSAL | HEDDLE_FEATURE_WINDOW_LEFT |
                            HEDDLE_FEATURE_GQA | HEDDLE_FEATURE_POS_OFFSET |
                            HEDDLE_FEATURE_LSE_OUT | HEDDLE_FEATURE_DETERMINISTIC |
                            HEDDLE_FEATURE_KV_LEN;

const heddle_attention_plugin kPlugin = {sizeof(heddle_attention_plugin),
                                         HEDDLE_ATTENTION_MAGIC,
                                         HEDDLE_ATTENTION_ABI_MAJOR,
                                         HEDDLE_ATTENTION_ABI_MINOR,
                                         "mutant",
                                         "1.0.0",
                                         "naive attention with one thing wrong",
                                         kKnown,
                                         HEDDLE_DEVICE_CPU,
                                         HEDDLE_PROP_CTX_CONCURRENT,
                                         sizeof(heddle_attention_problem),
                                         sizeof(heddle_attention_call),
                                         create,
                                         destroy,
                                         query,
                                         forward,
                                         backward,
                                         decode};

}  // namespace
}  // namespace heddle::mutants

extern "C" HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(
    const heddle_host*, heddle_text*) {
  return &heddle::mutants::kPlugin;
}
