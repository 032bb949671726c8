/* A slow, right attention plugin in C11, and through its switches a family of wrong ones. Every
 * switch is a macro that CMakeLists.txt sets; without any the plugin is correct. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "plugins/abi/heddle_attention.h"

#ifndef FIXTURE_NAME
#define FIXTURE_NAME "naive"
#endif
#ifndef FIXTURE_EST_US /* estimated time of every call */
#define FIXTURE_EST_US 1e9
#endif
#ifndef FIXTURE_WINDOW_SHIFT /* keys too many in the window */
#define FIXTURE_WINDOW_SHIFT 0
#endif
#ifndef FIXTURE_OUT_FACTOR
#define FIXTURE_OUT_FACTOR 1.0
#endif
#ifndef FIXTURE_ONLY_HEAD_DIM /* 0: every one */
#define FIXTURE_ONLY_HEAD_DIM 0
#endif
#ifndef FIXTURE_FEATURES
#define FIXTURE_FEATURES 0x7f
#endif
#ifndef FIXTURE_PROPERTIES
#define FIXTURE_PROPERTIES 0
#endif
#ifndef FIXTURE_DETERMINISTIC
#define FIXTURE_DETERMINISTIC 1
#endif
#ifndef FIXTURE_MAX_LEN /* query says yes beyond, the call then fails */
#define FIXTURE_MAX_LEN 0
#endif
#ifndef FIXTURE_WORKSPACE
#define FIXTURE_WORKSPACE 0
#endif
#ifndef FIXTURE_WORKSPACE_ALIGN
#define FIXTURE_WORKSPACE_ALIGN 0
#endif
#ifndef FIXTURE_WORKSPACE_OVERRUN /* bytes */
#define FIXTURE_WORKSPACE_OVERRUN 0
#endif
#ifndef FIXTURE_STRUCT_SIZE
#define FIXTURE_STRUCT_SIZE sizeof(heddle_attention_plugin)
#endif
#ifndef FIXTURE_MAJOR
#define FIXTURE_MAJOR HEDDLE_ATTENTION_ABI_MAJOR
#endif
#ifndef FIXTURE_DEVICE
#define FIXTURE_DEVICE HEDDLE_DEVICE_CPU
#endif
#ifndef FIXTURE_FORWARD
#define FIXTURE_FORWARD forward
#endif
#ifndef FIXTURE_DECODE
#define FIXTURE_DECODE decode
#endif
#ifndef FIXTURE_ENTRY /* statement run at the start of the entry function */
#define FIXTURE_ENTRY
#endif
#ifndef FIXTURE_CALL /* statement run at the start of forward */
#define FIXTURE_CALL
#endif
#ifndef FIXTURE_REFUSE_CPU /* text */
#define FIXTURE_REFUSE_CPU NULL
#endif

struct heddle_attention_ctx {
  const heddle_host* host;
};

typedef struct job {
  const heddle_attention_problem* p;
  const heddle_attention_call* c;
} job;

static void say(heddle_text* text, const char* message) {
  if (text != NULL && text->buf != NULL) {
    text->len = (uint32_t)snprintf(text->buf, text->cap, "%s", message);
  }
}

static const float* row(const void* data, const heddle_strides* s, int64_t b, int64_t t,
                        int64_t h) {
  return (const float*)data + b * s->batch + t * s->token + h * s->head;
}

static int visible(const heddle_attention_problem* p, int64_t qp, int64_t kp) {
  if (p->mask == HEDDLE_MASK_CAUSAL && kp > qp) return 0;
  return p->window_left < 0 || qp - kp <= p->window_left + FIXTURE_WINDOW_SHIFT;
}

static double score(const heddle_attention_problem* p, const float* q, const float* k) {
  double sum = 0.0;
  for (int32_t d = 0; d < p->head_dim; ++d) sum += (double)q[d] * k[d];
  return sum * p->scale;
}

/* lse of one query over the first k_len keys; -inf when it sees none. */
static double row_lse(const job* j, const float* q, int64_t b, int64_t kv, int64_t qp, int64_t kp0,
                      int64_t k_len) {
  double top = -INFINITY, sum = 0.0;
  for (int64_t n = 0; n < k_len; ++n) {
    if (!visible(j->p, qp, kp0 + n)) continue;
    top = fmax(top, score(j->p, q, row(j->c->k, &j->p->k, b, n, kv)));
  }
  if (top == -INFINITY) return top;
  for (int64_t n = 0; n < k_len; ++n) {
    if (!visible(j->p, qp, kp0 + n)) continue;
    sum += exp(score(j->p, q, row(j->c->k, &j->p->k, b, n, kv)) - top);
  }
  return top + log(sum);
}

/* One output row. */
static void attend(const job* j, int64_t b, int64_t h, int64_t i, int64_t qp, int64_t kp0,
                   int64_t k_len) {
  const heddle_attention_problem* p = j->p;
  const int64_t kv = h / (p->n_head / p->n_kv_head);
  const float* q = row(j->c->q, &p->q, b, i, h);
  float* out = (float*)row(j->c->out, &p->out, b, i, h);
  const double lse = row_lse(j, q, b, kv, qp, kp0, k_len);
  for (int32_t d = 0; d < p->head_dim; ++d) {
    double sum = 0.0;
    for (int64_t n = 0; n < k_len && lse != -INFINITY; ++n) {
      if (!visible(p, qp, kp0 + n)) continue;
      sum += exp(score(p, q, row(j->c->k, &p->k, b, n, kv)) - lse) *
             row(j->c->v, &p->v, b, n, kv)[d];
    }
    out[d] = (float)(sum * FIXTURE_OUT_FACTOR);
  }
  if (p->flags & HEDDLE_FLAG_LSE_OUT) {
    j->c->lse[b * p->lse_stride_batch + h * p->lse_stride_head + i] = (float)lse;
  }
}

static void forward_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  (void)worker;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t b = n / j->p->n_head, h = n % j->p->n_head;
    for (int64_t i = 0; i < j->p->q_len; ++i) {
      attend(j, b, h, i, j->p->q_pos0 + i, j->p->k_pos0, j->p->k_len);
    }
  }
}

static void decode_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  (void)worker;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t b = n / j->p->n_head, h = n % j->p->n_head, len = j->c->kv_len[b];
    for (int64_t i = 0; i < j->p->q_len; ++i) {
      attend(j, b, h, i, len - j->p->q_len + i, 0, len);
    }
  }
}

/* Adds the share of query i of head h to the sums of dk and dv, and writes its dq. */
static void backward_row(const job* j, int64_t b, int64_t kv, int64_t h, int64_t i, double* dk,
                         double* dv) {
  const heddle_attention_problem* p = j->p;
  const int32_t dim = p->head_dim;
  const int64_t qp = p->q_pos0 + i;
  const float *q = row(j->c->q, &p->q, b, i, h), *dout = row(j->c->dout, &p->dout, b, i, h);
  const float* out = row(j->c->out, &p->out, b, i, h);
  float* dq = (float*)row(j->c->dq, &p->dq, b, i, h);
  const double lse = j->c->lse[b * p->lse_stride_batch + h * p->lse_stride_head + i];
  double delta = 0.0;
  for (int32_t d = 0; d < dim; ++d) delta += (double)out[d] * dout[d];
  double sums[512] = {0};
  for (int64_t n = 0; n < p->k_len && lse != -INFINITY; ++n) {
    if (!visible(p, qp, p->k_pos0 + n)) continue;
    const float *k = row(j->c->k, &p->k, b, n, kv), *v = row(j->c->v, &p->v, b, n, kv);
    const double prob = exp(score(p, q, k) - lse);
    double dp = 0.0;
    for (int32_t d = 0; d < dim; ++d) dp += (double)dout[d] * v[d];
    const double ds = prob * (dp - delta) * p->scale;
    for (int32_t d = 0; d < dim; ++d) {
      sums[d] += ds * k[d];
      dk[n * dim + d] += ds * q[d];
      dv[n * dim + d] += prob * dout[d];
    }
  }
  for (int32_t d = 0; d < dim; ++d) dq[d] = (float)sums[d];
}

static void backward_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  const heddle_attention_problem* p = j->p;
  const int64_t group = p->n_head / p->n_kv_head, dim = p->head_dim;
  (void)worker;
  double* sums = calloc((size_t)(2 * p->k_len * dim), sizeof(double));
  if (sums == NULL) abort();
  for (int64_t n = begin; n < end; ++n) {
    const int64_t b = n / p->n_kv_head, kv = n % p->n_kv_head;
    double *dk = sums, *dv = sums + p->k_len * dim;
    memset(sums, 0, (size_t)(2 * p->k_len * dim) * sizeof(double));
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t i = 0; i < p->q_len; ++i) backward_row(j, b, kv, h, i, dk, dv);
    }
    for (int64_t t = 0; t < p->k_len; ++t) {
      float* dk_row = (float*)row(j->c->dk, &p->dk, b, t, kv);
      float* dv_row = (float*)row(j->c->dv, &p->dv, b, t, kv);
      for (int64_t d = 0; d < dim; ++d) {
        dk_row[d] = (float)dk[t * dim + d];
        dv_row[d] = (float)dv[t * dim + d];
      }
    }
  }
  free(sums);
}

static uint32_t run(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                    const heddle_attention_call* c, int64_t n, heddle_parallel_body body) {
  const uint64_t needed = FIXTURE_WORKSPACE;
  if (FIXTURE_MAX_LEN > 0 && p->q_len > FIXTURE_MAX_LEN) {
    say(c->err, "too long after all");
    return HEDDLE_UNSUPPORTED;
  }
  if (needed > 0) {
    if (c->workspace_bytes < needed || (uintptr_t)c->workspace % 64 != 0) {
      say(c->err, "workspace too small");
      return HEDDLE_INVALID_ARG;
    }
    if (FIXTURE_WORKSPACE_ALIGN > 0 &&
        (uintptr_t)c->workspace % (FIXTURE_WORKSPACE_ALIGN + !FIXTURE_WORKSPACE_ALIGN) != 0) {
      say(c->err, "workspace not aligned");
      return HEDDLE_INVALID_ARG;
    }
    memset(c->workspace, 0x5a, needed + FIXTURE_WORKSPACE_OVERRUN);
  }
  job j = {p, c};
  ctx->host->parallel_for(ctx->host->user, n, 1, body, &j);
  return HEDDLE_OK;
}

static uint32_t forward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                        const heddle_attention_call* c) {
  FIXTURE_CALL;
  return run(ctx, p, c, p->batch * p->n_head, forward_body);
}

#ifndef FIXTURE_NO_BACKWARD
static uint32_t backward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                         const heddle_attention_call* c) {
  return run(ctx, p, c, p->batch * p->n_kv_head, backward_body);
}
#endif

#ifndef FIXTURE_NO_DECODE
static uint32_t decode(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                       const heddle_attention_call* c) {
  return run(ctx, p, c, p->batch * p->n_head, decode_body);
}
#endif

static uint32_t create(const heddle_host* host, const heddle_device* device,
                       heddle_attention_ctx** ctx, heddle_text* err) {
  const char* refused = FIXTURE_REFUSE_CPU;
  (void)device;
  if (refused != NULL) {
    say(err, refused);
    return HEDDLE_REFUSED;
  }
  *ctx = calloc(1, sizeof **ctx);
  if (*ctx == NULL) return HEDDLE_OUT_OF_MEMORY;
  (*ctx)->host = host;
  return HEDDLE_OK;
}

static void destroy(heddle_attention_ctx* ctx) { free(ctx); }

static uint32_t refuse(heddle_attention_verdict* v, uint32_t code, const char* field,
                       const char* got, const char* want, const char* hint) {
  v->supported = 0;
  v->reason_count = 1;
  if (v->reason_capacity > 0) {
    v->reasons[0].code = code;
    snprintf(v->reasons[0].field, sizeof v->reasons[0].field, "%s", field);
    snprintf(v->reasons[0].got, sizeof v->reasons[0].got, "%s", got);
    snprintf(v->reasons[0].want, sizeof v->reasons[0].want, "%s", want);
    snprintf(v->reasons[0].hint, sizeof v->reasons[0].hint, "%s", hint);
  }
  return HEDDLE_OK;
}

static uint32_t query(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                      heddle_attention_verdict* v) {
  (void)ctx;
  if (FIXTURE_ONLY_HEAD_DIM > 0 && p->head_dim != FIXTURE_ONLY_HEAD_DIM) {
    char got[32], want[32];
    snprintf(got, sizeof got, "%d", (int)p->head_dim);
    snprintf(want, sizeof want, "==%d", FIXTURE_ONLY_HEAD_DIM);
    return refuse(v, HEDDLE_REASON_HEAD_DIM, "head_dim", got, want, "change n_embd / n_head");
  }
  if (!FIXTURE_DETERMINISTIC && (p->flags & HEDDLE_FLAG_DETERMINISTIC)) {
    return refuse(v, HEDDLE_REASON_DETERMINISM, "flags", "DETERMINISTIC", "==0", "");
  }
  v->supported = 1;
  v->est_time_us = FIXTURE_EST_US;
  v->workspace_bytes = FIXTURE_WORKSPACE;
  v->workspace_align = FIXTURE_WORKSPACE_ALIGN;
  snprintf(v->kernel, sizeof v->kernel, "%s_loops", FIXTURE_NAME);
  return HEDDLE_OK;
}

#ifdef FIXTURE_FAST_MATH
/* What a library linked with -ffast-math does when it is loaded. */
__attribute__((constructor)) static void flush_denormals(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
#endif

#ifdef FIXTURE_NO_BACKWARD
#define FIXTURE_BACKWARD NULL
#else
#define FIXTURE_BACKWARD backward
#endif
#ifdef FIXTURE_NO_DECODE
#undef FIXTURE_DECODE
#define FIXTURE_DECODE NULL
#endif

static const heddle_attention_plugin kPlugin = {
    .struct_size = FIXTURE_STRUCT_SIZE,
    .magic = HEDDLE_ATTENTION_MAGIC,
    .abi_major = FIXTURE_MAJOR,
    .abi_minor = HEDDLE_ATTENTION_ABI_MINOR,
    .name = FIXTURE_NAME,
    .version = "0.1",
    .description = "attention by its definition",
    .known_features = FIXTURE_FEATURES,
    .device_type = FIXTURE_DEVICE,
    .properties = FIXTURE_PROPERTIES,
    .problem_size = sizeof(heddle_attention_problem),
    .call_size = sizeof(heddle_attention_call),
    .create = create,
    .destroy = destroy,
    .query = query,
    .forward = FIXTURE_FORWARD,
    .backward = FIXTURE_BACKWARD,
    .decode = FIXTURE_DECODE,
};

HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                                        heddle_text* err) {
  (void)host;
  (void)err;
  FIXTURE_ENTRY;
  return &kPlugin;
}
