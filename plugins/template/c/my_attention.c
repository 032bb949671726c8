/* my_attention: a Heddle attention backend in C11. Slow and right; README.md walks to a fast one.
 *
 * Every row is computed by its definition in double precision: no tile, no vector, no workspace.
 * What the numbers mean is at the top of heddle_attention.h. */
#include <heddle/heddle_attention.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEAD_DIM 256 /* sums of a row live on the stack */

struct heddle_attention_ctx {
  const heddle_host* host;
};

/* ---- what a query may see -------------------------------------------------------------------- */

typedef struct range {
  int64_t begin, end;
} range;

static int64_t clamp(int64_t x, int64_t most) {
  return x < 0 ? 0 : x < most ? x : most;
}

static int windowed(const heddle_attention_problem* p) {
  return p->window_left >= 0 && p->window_left < INT64_C(1) << 61; /* wider than any position */
}

/* Keys among n that the query sees whose own position is that of key `self`. */
static range keys_seen(const heddle_attention_problem* p, int64_t self, int64_t n) {
  range r = {0, n};
  if (windowed(p)) r.begin = clamp(self - p->window_left, n);
  if (p->mask == HEDDLE_MASK_CAUSAL) r.end = clamp(self + 1, n);
  return r;
}

/* Queries that see the key whose own position is that of query `self`. */
static range seen_by(const heddle_attention_problem* p, int64_t self) {
  range r = {0, p->q_len};
  if (p->mask == HEDDLE_MASK_CAUSAL) r.begin = clamp(self, p->q_len);
  if (windowed(p)) r.end = clamp(self + p->window_left + 1, p->q_len);
  return r;
}

/* ---- rows -------------------------------------------------------------------------------------
 */

typedef struct job {
  const heddle_attention_problem* p;
  const heddle_attention_call* c;
} job;

static int64_t offset(const heddle_strides* s, int64_t b, int64_t t, int64_t h) {
  return b * s->batch + t * s->token + h * s->head;
}
static const float* row(const void* data, const heddle_strides* s, int64_t b, int64_t t,
                        int64_t h) {
  return (const float*)data + offset(s, b, t, h);
}
static float* row_out(void* data, const heddle_strides* s, int64_t b, int64_t t, int64_t h) {
  return (float*)data + offset(s, b, t, h);
}

static double dot(const float* a, const float* b, int32_t n) {
  double sum = 0.0;
  for (int32_t d = 0; d < n; ++d) sum += (double)a[d] * b[d];
  return sum;
}

/* out and lse of query i: one pass over its keys. The sums are kept relative to the largest score
 * so far and scaled down when a larger one comes, so that exp() cannot overflow. */
static void attend(const job* j, int64_t b, int64_t h, int64_t i, range keys) {
  const heddle_attention_problem* p = j->p;
  const int64_t kv = h / (p->n_head / p->n_kv_head);
  const float* q = row(j->c->q, &p->q, b, i, h);
  double sums[MAX_HEAD_DIM] = {0}, sum = 0.0, top = -INFINITY;
  for (int64_t n = keys.begin; n < keys.end; ++n) {
    const float* v = row(j->c->v, &p->v, b, n, kv);
    const double score = dot(q, row(j->c->k, &p->k, b, n, kv), p->head_dim) * p->scale;
    if (score > top) {
      const double shrink = exp(top - score);
      sum *= shrink;
      for (int32_t d = 0; d < p->head_dim; ++d) sums[d] *= shrink;
      top = score;
    }
    const double weight = exp(score - top);
    sum += weight;
    for (int32_t d = 0; d < p->head_dim; ++d) sums[d] += weight * v[d];
  }
  const int empty = keys.begin >= keys.end;
  float* out = row_out(j->c->out, &p->out, b, i, h);
  for (int32_t d = 0; d < p->head_dim; ++d) out[d] = empty ? 0.0f : (float)(sums[d] / sum);
  if (p->flags & HEDDLE_FLAG_LSE_OUT) {
    j->c->lse[b * p->lse_stride_batch + h * p->lse_stride_head + i] =
        empty ? -INFINITY : (float)(top + log(sum));
  }
}

/* The weight of key n for query i and the gradient of their score; both passes of BACKWARD need
 * it. delta = out . dout = sum over keys of weight * (dout . v). */
static double weight_of(const job* j, int64_t b, int64_t h, int64_t i, int64_t n, double* ds) {
  const heddle_attention_problem* p = j->p;
  const int64_t kv = h / (p->n_head / p->n_kv_head);
  const float* dout = row(j->c->dout, &p->dout, b, i, h);
  const double lse = j->c->lse[b * p->lse_stride_batch + h * p->lse_stride_head + i];
  const double score =
      dot(row(j->c->q, &p->q, b, i, h), row(j->c->k, &p->k, b, n, kv), p->head_dim) * p->scale;
  const double weight = exp(score - lse);
  const double delta = dot(row(j->c->out, &p->out, b, i, h), dout, p->head_dim);
  *ds = weight * (dot(dout, row(j->c->v, &p->v, b, n, kv), p->head_dim) - delta) * p->scale;
  return weight;
}

static void gradient_of_query(const job* j, int64_t b, int64_t h, int64_t i) {
  const heddle_attention_problem* p = j->p;
  const int64_t kv = h / (p->n_head / p->n_kv_head);
  const range keys = keys_seen(p, p->q_pos0 + i - p->k_pos0, p->k_len);
  double sums[MAX_HEAD_DIM] = {0};
  for (int64_t n = keys.begin; n < keys.end; ++n) {
    double ds;
    weight_of(j, b, h, i, n, &ds);
    const float* k = row(j->c->k, &p->k, b, n, kv);
    for (int32_t d = 0; d < p->head_dim; ++d) sums[d] += ds * k[d];
  }
  float* dq = row_out(j->c->dq, &p->dq, b, i, h);
  for (int32_t d = 0; d < p->head_dim; ++d) dq[d] = (float)sums[d];
}

/* Sums over all query heads of the group and all queries that see the key: no two workers write the
 * same row, so nothing is added atomically and the bits are the same every time. */
static void gradient_of_key(const job* j, int64_t b, int64_t kv, int64_t n) {
  const heddle_attention_problem* p = j->p;
  const int64_t group = p->n_head / p->n_kv_head;
  const range queries = seen_by(p, p->k_pos0 + n - p->q_pos0);
  double dk_sums[MAX_HEAD_DIM] = {0}, dv_sums[MAX_HEAD_DIM] = {0};
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      double ds;
      const double weight = weight_of(j, b, h, i, n, &ds);
      const float* q = row(j->c->q, &p->q, b, i, h);
      const float* dout = row(j->c->dout, &p->dout, b, i, h);
      for (int32_t d = 0; d < p->head_dim; ++d) {
        dk_sums[d] += ds * q[d];
        dv_sums[d] += weight * dout[d];
      }
    }
  }
  float* dk = row_out(j->c->dk, &p->dk, b, n, kv);
  float* dv = row_out(j->c->dv, &p->dv, b, n, kv);
  for (int32_t d = 0; d < p->head_dim; ++d) {
    dk[d] = (float)dk_sums[d];
    dv[d] = (float)dv_sums[d];
  }
}

/* ---- bodies of parallel_for: one index is one row ---------------------------------------------
 */

static void forward_rows(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  const heddle_attention_problem* p = j->p;
  (void)worker;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t i = n % p->q_len, h = n / p->q_len % p->n_head, b = n / p->q_len / p->n_head;
    attend(j, b, h, i, keys_seen(p, p->q_pos0 + i - p->k_pos0, p->k_len));
  }
}

static void decode_rows(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  const heddle_attention_problem* p = j->p;
  (void)worker;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t i = n % p->q_len, h = n / p->q_len % p->n_head, b = n / p->q_len / p->n_head;
    const int64_t len = j->c->kv_len[b];
    attend(j, b, h, i, keys_seen(p, len - p->q_len + i, len));
  }
}

static void dq_rows(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  const heddle_attention_problem* p = j->p;
  (void)worker;
  for (int64_t n = begin; n < end; ++n) {
    gradient_of_query(j, n / p->q_len / p->n_head, n / p->q_len % p->n_head, n % p->q_len);
  }
}

static void dk_dv_rows(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  const job* j = arg;
  const heddle_attention_problem* p = j->p;
  (void)worker;
  for (int64_t n = begin; n < end; ++n) {
    gradient_of_key(j, n / p->k_len / p->n_kv_head, n / p->k_len % p->n_kv_head, n % p->k_len);
  }
}

/* ---- query() -----------------------------------------------------------------------------------
 */

static void refuse(heddle_attention_verdict* v, int ok, uint32_t code, const char* field,
                   int64_t got, const char* want, const char* hint) {
  if (ok) return;
  const uint32_t n = v->reason_count++;
  v->supported = 0;
  if (v->reasons == NULL || n >= v->reason_capacity) return;
  heddle_attention_reason* r = &v->reasons[n];
  memset(r, 0, sizeof *r);
  r->code = code;
  snprintf(r->field, sizeof r->field, "%s", field);
  snprintf(r->got, sizeof r->got, "%" PRId64, got);
  snprintf(r->want, sizeof r->want, "%s", want);
  snprintf(r->hint, sizeof r->hint, "%s", hint);
}

/* Read off `heddle plugin bench` on one core; what attention.backend: auto compares. */
static double estimate_us(const heddle_attention_problem* p) {
  double keys = (double)p->k_len; /* that a query sees on average */
  if (p->mask == HEDDLE_MASK_CAUSAL && p->op != HEDDLE_OP_DECODE) keys *= 0.5;
  if (windowed(p) && (double)p->window_left + 1.0 < keys) keys = (double)p->window_left + 1.0;
  const double work = (double)p->batch * p->n_head * (double)p->q_len * keys * p->head_dim;
  return 1.0 + work * (p->op == HEDDLE_OP_BACKWARD ? 5e-3 : 1.3e-3);
}

/* Name every limit of the kernel here: a yes is a promise that the call will be right. */
static uint32_t query(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                      heddle_attention_verdict* v) {
  static const char* const kernels[] = {"", "forward_rows", "backward_rows", "decode_rows"};
  const int64_t far = p->op == HEDDLE_OP_DECODE ? 0 : INT64_C(1000000000000);
  const char* where = p->op == HEDDLE_OP_DECODE ? "==0" : "in[-1000000000000,1000000000000]";
  (void)ctx;
  if (p->struct_size < HEDDLE_PROBLEM_SIZE_1_0 || v->struct_size < HEDDLE_VERDICT_SIZE_1_0) {
    return HEDDLE_INVALID_ARG;
  }
  v->supported = 1;
  v->reason_count = 0;
  v->workspace_bytes = 0;
  v->workspace_align = 0;
  v->est_time_us = 0.0;
  v->kernel[0] = '\0';
  refuse(v, p->device_type == HEDDLE_DEVICE_CPU, HEDDLE_REASON_DEVICE, "device_type",
         p->device_type, "==1", "choose another attention.backend for this device");
  refuse(v, p->op >= HEDDLE_OP_FORWARD && p->op <= HEDDLE_OP_DECODE, HEDDLE_REASON_OP, "op", p->op,
         "in{1,2,3}", "");
  refuse(v, p->dtype == HEDDLE_DTYPE_F32, HEDDLE_REASON_DTYPE, "dtype", p->dtype, "==1",
         "run the CPU device in fp32");
  refuse(v, p->mask == HEDDLE_MASK_NONE || p->mask == HEDDLE_MASK_CAUSAL, HEDDLE_REASON_MASK,
         "mask", p->mask, "in{0,1}", "");
  refuse(v, (p->flags & ~(HEDDLE_FLAG_LSE_OUT | HEDDLE_FLAG_DETERMINISTIC)) == 0,
         HEDDLE_REASON_FEATURE, "flags", p->flags, "<=3", "");
  refuse(v, p->head_dim >= 1 && p->head_dim <= MAX_HEAD_DIM, HEDDLE_REASON_HEAD_DIM, "head_dim",
         p->head_dim, "in[1,256]", "choose model.n_head so that n_embd / n_head <= 256");
  refuse(v, p->n_head >= 1, HEDDLE_REASON_HEADS, "n_head", p->n_head, ">=1", "");
  refuse(v, p->n_kv_head >= 1 && p->n_head % p->n_kv_head == 0, HEDDLE_REASON_HEADS, "n_kv_head",
         p->n_kv_head, "divides n_head", "set model.n_kv_head to a divisor of model.n_head");
  refuse(v, p->batch >= 0, HEDDLE_REASON_LENGTH, "batch", p->batch, ">=0", "");
  refuse(v, p->q_len >= 0, HEDDLE_REASON_LENGTH, "q_len", p->q_len, ">=0", "");
  refuse(v, p->k_len >= 0, HEDDLE_REASON_LENGTH, "k_len", p->k_len, ">=0", "");
  refuse(v, p->window_left >= -1, HEDDLE_REASON_WINDOW, "window_left", p->window_left, ">=-1",
         "-1 is the only negative window");
  refuse(v, p->q_pos0 >= -far && p->q_pos0 <= far, HEDDLE_REASON_POSITION, "q_pos0", p->q_pos0,
         where, "");
  refuse(v, p->k_pos0 >= -far && p->k_pos0 <= far, HEDDLE_REASON_POSITION, "k_pos0", p->k_pos0,
         where, "");
  if (!v->supported) return HEDDLE_OK;
  v->est_time_us = estimate_us(p);
  snprintf(v->kernel, sizeof v->kernel, "%s", kernels[p->op]);
  return HEDDLE_OK;
}

/* ---- calls -------------------------------------------------------------------------------------
 */

static uint32_t fail(heddle_text* err, uint32_t status, const char* format, ...) {
  if (err == NULL) return status;
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(err->cap > 0 ? err->buf : NULL, err->cap, format, args);
  va_end(args);
  err->len = n > 0 ? (uint32_t)n : 0;
  return status;
}

/* What every call has to keep; NULL when it does. A tensor without elements may have no address. */
static const char* missing(const heddle_attention_problem* p, const heddle_attention_call* c) {
  const int queries = p->batch * p->q_len > 0, keys = p->batch * p->k_len > 0;
  const int backward = p->op == HEDDLE_OP_BACKWARD;
  if (queries && c->q == NULL) return "q";
  if (keys && c->k == NULL) return "k";
  if (keys && c->v == NULL) return "v";
  if (queries && c->out == NULL) return "out";
  if (queries && (backward || (p->flags & HEDDLE_FLAG_LSE_OUT)) && c->lse == NULL) return "lse";
  if (p->op == HEDDLE_OP_DECODE && p->batch > 0 && c->kv_len == NULL) return "kv_len";
  if (!backward) return NULL;
  if (queries && c->dout == NULL) return "dout";
  if (queries && c->dq == NULL) return "dq";
  if (keys && c->dk == NULL) return "dk";
  return keys && c->dv == NULL ? "dv" : NULL;
}

static uint32_t check_call(heddle_attention_ctx* ctx, uint32_t op,
                           const heddle_attention_problem* p, const heddle_attention_call* c) {
  heddle_attention_verdict v = {.struct_size = sizeof v};
  if (p->struct_size < HEDDLE_PROBLEM_SIZE_1_0 || c->struct_size < HEDDLE_CALL_SIZE_1_0) {
    return HEDDLE_INVALID_ARG;
  }
  if (p->op != op) {
    return fail(c->err, HEDDLE_INVALID_ARG, "op is %u, expected %u for this function", p->op, op);
  }
  query(ctx, p, &v);
  if (!v.supported) return fail(c->err, HEDDLE_UNSUPPORTED, "query() says no to this problem");
  const char* name = missing(p, c);
  if (name != NULL) {
    return fail(c->err, HEDDLE_INVALID_ARG, "%s is NULL, expected an address", name);
  }
  for (int64_t b = 0; op == HEDDLE_OP_DECODE && b < p->batch; ++b) {
    if (c->kv_len[b] < 0 || c->kv_len[b] > p->k_len) {
      return fail(c->err, HEDDLE_INVALID_ARG, "kv_len[%" PRId64 "]: got %d, expected 0 to %" PRId64,
                  b, (int)c->kv_len[b], p->k_len);
    }
  }
  return HEDDLE_OK;
}

static void run(heddle_attention_ctx* ctx, job* j, int64_t rows, heddle_parallel_body body) {
  ctx->host->parallel_for(ctx->host->user, rows, 1, body, j);
}

static uint32_t forward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                        const heddle_attention_call* c) {
  job j = {p, c};
  const uint32_t status = check_call(ctx, HEDDLE_OP_FORWARD, p, c);
  if (status == HEDDLE_OK) run(ctx, &j, p->batch * p->n_head * p->q_len, forward_rows);
  return status;
}

static uint32_t backward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                         const heddle_attention_call* c) {
  job j = {p, c};
  const uint32_t status = check_call(ctx, HEDDLE_OP_BACKWARD, p, c);
  if (status != HEDDLE_OK) return status;
  run(ctx, &j, p->batch * p->n_head * p->q_len, dq_rows);
  run(ctx, &j, p->batch * p->n_kv_head * p->k_len, dk_dv_rows);
  return HEDDLE_OK;
}

static uint32_t decode(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                       const heddle_attention_call* c) {
  job j = {p, c};
  const uint32_t status = check_call(ctx, HEDDLE_OP_DECODE, p, c);
  if (status == HEDDLE_OK) run(ctx, &j, p->batch * p->n_head * p->q_len, decode_rows);
  return status;
}

/* ---- the table ---------------------------------------------------------------------------------
 */

static uint32_t create(const heddle_host* host, const heddle_device* device,
                       heddle_attention_ctx** ctx, heddle_text* err) {
  if (device->type != HEDDLE_DEVICE_CPU) {
    return fail(err, HEDDLE_REFUSED, "device type is %u, expected 1 (CPU)", device->type);
  }
  *ctx = malloc(sizeof **ctx);
  if (*ctx == NULL) return fail(err, HEDDLE_OUT_OF_MEMORY, "no memory for a context");
  (*ctx)->host = host;
  return HEDDLE_OK;
}

static void destroy(heddle_attention_ctx* ctx) {
  free(ctx);
}

static const heddle_attention_plugin plugin = {
    .struct_size = sizeof(heddle_attention_plugin),
    .magic = HEDDLE_ATTENTION_MAGIC,
    .abi_major = HEDDLE_ATTENTION_ABI_MAJOR,
    .abi_minor = HEDDLE_ATTENTION_ABI_MINOR,
    .name = "my_attention",
    .version = "0.1.0",
    .description = "attention by its definition, in C",
    .known_features = HEDDLE_FEATURE_CAUSAL | HEDDLE_FEATURE_WINDOW_LEFT | HEDDLE_FEATURE_GQA |
                      HEDDLE_FEATURE_POS_OFFSET | HEDDLE_FEATURE_LSE_OUT |
                      HEDDLE_FEATURE_DETERMINISTIC | HEDDLE_FEATURE_KV_LEN,
    .device_type = HEDDLE_DEVICE_CPU,
    .properties = HEDDLE_PROP_CTX_CONCURRENT, /* a context is never written after create() */
    .problem_size = sizeof(heddle_attention_problem),
    .call_size = sizeof(heddle_attention_call),
    .create = create,
    .destroy = destroy,
    .query = query,
    .forward = forward,
    .backward = backward,
    .decode = decode,
};

HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(const heddle_host* host,
                                                                        heddle_text* err) {
  if (host == NULL || host->struct_size < HEDDLE_HOST_SIZE_1_0) {
    fail(err, HEDDLE_INVALID_ARG, "the host's table is smaller than that of ABI 1.0");
    return NULL;
  }
  return &plugin;
}
