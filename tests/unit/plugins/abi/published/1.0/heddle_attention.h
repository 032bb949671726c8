/* heddle_attention.h - the attention plugin ABI of Heddle, major version 1.
 *
 * The only file an attention backend needs. C11 and C++20, no dependency but <stdint.h>.
 * A backend is a shared library that exports ONE function, heddle_attention_plugin_v1().
 *
 * Conventions
 *   - Every struct begins with struct_size and is a multiple of 8 bytes without implicit padding.
 *     Within major 1 fields are only appended; zero in a field that one side does not know means
 *     the behaviour before that field existed.
 *   - Lengths are tokens, strides are ELEMENTS, sizes are bytes, times are microseconds, positions
 *     are absolute token positions. Tensors are (batch, token, head, dim), dim contiguous.
 *   - Strings are UTF-8 and NUL-terminated. Strings that a plugin returns live for ever.
 *   - The host owns all memory, streams and threads. Inside query/forward/backward/decode a plugin
 *     does not allocate, start threads, synchronise, print, throw, exit, or change the rounding
 *     mode, locale, environment or signal handlers. What a wrapped library cannot avoid is declared
 *     in heddle_attention_plugin::properties.
 *   - Lifetimes: heddle_host lives as long as the process; heddle_device, heddle_attention_problem,
 *     _call and _verdict, and what they point to, until the function returns (on CUDA the tensors
 *     and the workspace until the stream has passed the call). A plugin keeps no such pointer.
 *   - NULL: a pointer may be NULL only where this header says so, or when its tensor has no element.
 *   - A plugin is never unloaded. Link without -ffast-math (it would change the host's MXCSR).
 *
 * Semantics (query row i, key j, both within one batch row)
 *   position   qp = q_pos0 + i, kp = k_pos0 + j          (FORWARD, BACKWARD)
 *              qp = kv_len[b] - q_len + i, kp = j        (DECODE; kv_len counts the new tokens)
 *   visible    (mask != CAUSAL or kp <= qp) and (window_left < 0 or qp - kp <= window_left)
 *              and, in DECODE, kp < kv_len[b]
 *              so window_left = W shows W earlier keys and the row's own.
 *   out        sum_j softmax_j(scale * q.k) v over visible keys
 *   lse        natural log of sum_j exp(scale * q.k) over visible keys, fp32, (batch, head, token)
 *   no key     a row that sees no key: out = 0, lse = -inf, gradients 0, never NaN
 *   GQA        query head h reads kv head h / (n_head / n_kv_head); dk and dv are summed over the
 *              query heads of a group in at least fp32
 *   BACKWARD   takes out, lse and dout as given, overwrites dq, dk, dv completely
 *   NaN        bytes at positions >= kv_len[b], stride gaps and workspace never reach a result.
 *              A NaN in a masked key inside k_len is unspecified, except that DECODE with
 *              q_len = 1 ignores keys outside the window.
 */
#ifndef HEDDLE_ATTENTION_H
#define HEDDLE_ATTENTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEDDLE_ATTENTION_ABI_MAJOR 1u
#define HEDDLE_ATTENTION_ABI_MINOR 0u
#define HEDDLE_ATTENTION_MAGIC 0x4c444548u /* "HEDL", little-endian */
#define HEDDLE_ATTENTION_ENTRY "heddle_attention_plugin_v1"

/* Sizes in bytes of what the other side passes in minor 0: the least that either side may accept.
 * (sizeof is larger once a later minor has appended something.) */
#define HEDDLE_HOST_SIZE_1_0 56u
#define HEDDLE_DEVICE_SIZE_1_0 32u
#define HEDDLE_PROBLEM_SIZE_1_0 320u
#define HEDDLE_VERDICT_SIZE_1_0 112u
#define HEDDLE_CALL_SIZE_1_0 120u
#define HEDDLE_PLUGIN_SIZE_1_0 112u

#if defined(__GNUC__)
#define HEDDLE_EXPORT __attribute__((visibility("default")))
#else
#define HEDDLE_EXPORT
#endif

/* ---- values (uint32_t, never reused) ---------------------------------------------------- */

/* What a plugin function returns. On anything but OK it fills the call's heddle_text. */
enum {
  HEDDLE_OK = 0,
  HEDDLE_REFUSED = 1,       /* create: not on this machine, and why */
  HEDDLE_INVALID_ARG = 2,   /* the host broke this header */
  HEDDLE_UNSUPPORTED = 3,   /* not covered by a yes of query(): a broken promise if query said yes */
  HEDDLE_OUT_OF_MEMORY = 4, /* only from create */
  HEDDLE_DEVICE_ERROR = 5,
  HEDDLE_INTERNAL = 6
};

/* Device types, numbered as in DLPack. */
enum { HEDDLE_DEVICE_CPU = 1, HEDDLE_DEVICE_CUDA = 2 };

enum { HEDDLE_DTYPE_F32 = 1, HEDDLE_DTYPE_F16 = 2, HEDDLE_DTYPE_BF16 = 3 };

enum { HEDDLE_OP_FORWARD = 1, HEDDLE_OP_BACKWARD = 2, HEDDLE_OP_DECODE = 3 };

enum { HEDDLE_MASK_NONE = 0, HEDDLE_MASK_CAUSAL = 1 };

/* heddle_attention_problem::flags */
#define HEDDLE_FLAG_LSE_OUT (1u << 0)       /* FORWARD, DECODE: write lse */
#define HEDDLE_FLAG_DETERMINISTIC (1u << 1) /* same bits every time, for any number of workers */

/* heddle_attention_problem::required_features and heddle_attention_plugin::known_features.
 * A set bit in required_features says that the problem uses a meaning which the plugin must
 * understand; the host refuses on behalf of a plugin that does not know it. A known bit means
 * "I read these fields and obey or refuse them", not "I accept every value". Bits 0..31 must be
 * understood; bits 32..63 are hints that an older plugin may ignore. */
#define HEDDLE_FEATURE_CAUSAL (UINT64_C(1) << 0)
#define HEDDLE_FEATURE_WINDOW_LEFT (UINT64_C(1) << 1)
#define HEDDLE_FEATURE_GQA (UINT64_C(1) << 2)
#define HEDDLE_FEATURE_POS_OFFSET (UINT64_C(1) << 3) /* q_pos0 or k_pos0 not 0, or q_len != k_len */
#define HEDDLE_FEATURE_LSE_OUT (UINT64_C(1) << 4)
#define HEDDLE_FEATURE_DETERMINISTIC (UINT64_C(1) << 5)
#define HEDDLE_FEATURE_KV_LEN (UINT64_C(1) << 6) /* DECODE with per-row cache lengths */
#define HEDDLE_FEATURE_MUST_UNDERSTAND UINT64_C(0x00000000ffffffff)

/* heddle_attention_plugin::properties: what the plugin cannot avoid, or promises. */
#define HEDDLE_PROP_CTX_CONCURRENT (1u << 0) /* calls on one ctx may run at the same time */
#define HEDDLE_PROP_ALLOCATES (1u << 1)      /* allocates memory inside calls */
#define HEDDLE_PROP_OWN_THREADS (1u << 2)    /* computes on threads of its own; no more of them than
                                                num_workers(), and without changing how many threads
                                                the process's other libraries use */
#define HEDDLE_PROP_NO_LSE (1u << 3)         /* its backward reads neither lse nor out: it computes
                                                the forward pass again, and forward writes no lse */

/* ---- structs ------------------------------------------------------------------------------ */

/* A message buffer that the caller owns. The plugin writes at most cap bytes, NUL included, and
 * sets len to the length of the whole message. buf may be NULL when cap is 0. */
typedef struct heddle_text {
  char* buf;
  uint32_t cap;
  uint32_t len;
} heddle_text;

/* body(arg, begin, end, worker): covers [begin, end) of the index space. worker is unique among
 * the bodies that run at the same moment and less than num_workers(). */
typedef void (*heddle_parallel_body)(void* arg, int64_t begin, int64_t end, uint32_t worker);

/* Services of the host; lives as long as the process. */
typedef struct heddle_host {
  uint32_t struct_size;
  uint32_t abi_minor;
  const char* name;    /* "heddle" */
  const char* version; /* "0.1.0" */
  void* user;          /* first argument of the functions below */
  /* level: 0 debug, 1 info, 2 warning, 3 error. Any thread. */
  void (*log)(void* user, uint32_t level, const char* utf8);
  /* How many bodies parallel_for runs at the same time, at most. Constant for the process. */
  uint32_t (*num_workers)(void* user);
  /* Runs body over [0, n) in pieces of at least grain indices; returns when all are done. Called
   * from the thread that entered the plugin. A nested call runs on the calling worker. */
  void (*parallel_for)(void* user, int64_t n, int64_t grain, heddle_parallel_body body, void* arg);
} heddle_host;

/* The device that a context is made for. */
typedef struct heddle_device {
  uint32_t struct_size;
  uint32_t type;  /* HEDDLE_DEVICE_* */
  int32_t index;  /* as this process numbers devices; 0 on CPU */
  uint32_t arch;  /* CUDA: 10 * major + minor (90 is sm_90); CPU: 0 */
  uint32_t units; /* CUDA: SMs; CPU: workers of parallel_for */
  uint32_t reserved0;
  double peak_flops; /* dtype F32 on CPU; 0 = unknown */
} heddle_device;

/* Strides of a (batch, token, head, dim) tensor in elements; dim's stride is 1. */
typedef struct heddle_strides {
  int64_t batch;
  int64_t token;
  int64_t head;
} heddle_strides;

/* Everything about a call except its pointers. query() sees exactly this. */
typedef struct heddle_attention_problem {
  uint32_t struct_size;
  uint32_t op;                /* HEDDLE_OP_* */
  uint64_t required_features; /* heddle_attention_required_features() of this problem */
  uint32_t device_type;
  int32_t device_index;
  uint32_t dtype; /* of q k v out dout dq dk dv; lse is always fp32 */
  uint32_t mask;  /* HEDDLE_MASK_* */
  uint32_t flags; /* HEDDLE_FLAG_* */
  uint32_t align_bytes; /* every pointer is aligned to this power of two, at least 4 */
  int64_t batch;
  int64_t q_len;
  int64_t k_len; /* DECODE: capacity of the cache in tokens */
  int32_t n_head;
  int32_t n_kv_head; /* n_head % n_kv_head == 0 */
  int32_t head_dim;
  float scale;         /* multiplies q.k; no default */
  int64_t window_left; /* earlier keys besides self; -1 unlimited; no other negative value */
  int64_t q_pos0;      /* absolute position of query row 0; 0 in DECODE */
  int64_t k_pos0;      /* absolute position of key row 0; 0 in DECODE */
  heddle_strides q, k, v, out;      /* DECODE: k and v describe the cache */
  heddle_strides dout, dq, dk, dv;  /* BACKWARD only, else zero */
  int64_t lse_stride_batch;         /* lse's token stride is 1 */
  int64_t lse_stride_head;
  uint64_t max_workspace; /* bytes; 0 = no limit. Refuse or choose a smaller kernel. */
} heddle_attention_problem;

/* Why query() says no, in a form that a person and a program can read. */
enum {
  HEDDLE_REASON_DEVICE = 1,
  HEDDLE_REASON_OP = 2,
  HEDDLE_REASON_DTYPE = 3,
  HEDDLE_REASON_HEAD_DIM = 4,
  HEDDLE_REASON_HEADS = 5,
  HEDDLE_REASON_MASK = 6,
  HEDDLE_REASON_WINDOW = 7,
  HEDDLE_REASON_POSITION = 8,
  HEDDLE_REASON_STRIDE = 9,
  HEDDLE_REASON_ALIGNMENT = 10,
  HEDDLE_REASON_LENGTH = 11,
  HEDDLE_REASON_DETERMINISM = 12,
  HEDDLE_REASON_WORKSPACE = 13,
  HEDDLE_REASON_FEATURE = 14,
  HEDDLE_REASON_OTHER = 255
};

typedef struct heddle_attention_reason {
  uint32_t code; /* HEDDLE_REASON_* */
  uint32_t reserved0;
  char field[32]; /* name of the problem's field, e.g. "head_dim" */
  char got[56];   /* its value, e.g. "96" */
  char want[72];  /* what would be accepted: "in{64,128}", "<=256", "%8==0", "==1" */
  char hint[88];  /* what the user can do, e.g. "set model.n_embd / n_head to 128"; may be empty */
} heddle_attention_reason;

/* The answer of query(). A yes is a promise that the call will succeed. */
typedef struct heddle_attention_verdict {
  uint32_t struct_size; /* in: the plugin writes no byte beyond it */
  uint32_t supported;   /* out: 1 yes, 0 no */
  uint64_t workspace_bytes;
  uint64_t workspace_align; /* power of two, at most 4096; 0 = 64 */
  double est_time_us;       /* estimated time of one call; 0 = unknown */
  uint32_t reason_capacity; /* in: length of reasons */
  uint32_t reason_count;    /* out: reasons found, may exceed the capacity */
  heddle_attention_reason* reasons; /* in: host memory, NULL when the capacity is 0 */
  char kernel[64];                  /* out: what would run, for logs */
} heddle_attention_verdict;

/* The pointers of one call, on the problem's device. Unused ones are NULL. */
typedef struct heddle_attention_call {
  uint32_t struct_size;
  uint32_t reserved0;
  const void* q; /* (B, q_len, n_head, head_dim) */
  const void* k; /* (B, k_len, n_kv_head, head_dim); DECODE: the cache, already appended to */
  const void* v;
  void* out;        /* (B, q_len, n_head, head_dim); written, but read in BACKWARD */
  float* lse;       /* (B, n_head, q_len); written when LSE_OUT, read in BACKWARD */
  const void* dout; /* BACKWARD */
  void* dq;
  void* dk;
  void* dv;
  const int32_t* kv_len; /* DECODE: (B), valid tokens of each row after the append */
  void* workspace;       /* at least verdict.workspace_bytes, contents arbitrary */
  uint64_t workspace_bytes;
  void* stream;     /* CUDA: cudaStream_t, never the default stream; CPU: NULL */
  heddle_text* err; /* filled when the call does not return HEDDLE_OK; may be NULL */
} heddle_attention_call;

typedef struct heddle_attention_ctx heddle_attention_ctx; /* the plugin's own */

/* What the entry function returns; static, immutable. */
typedef struct heddle_attention_plugin {
  uint32_t struct_size;
  uint32_t magic;     /* HEDDLE_ATTENTION_MAGIC */
  uint32_t abi_major; /* HEDDLE_ATTENTION_ABI_MAJOR */
  uint32_t abi_minor; /* HEDDLE_ATTENTION_ABI_MINOR it was compiled with */
  const char* name;   /* [a-z0-9_]+, what attention.backend names */
  const char* version;
  const char* description; /* one line */
  uint64_t known_features; /* HEDDLE_FEATURE_* */
  uint32_t device_type;    /* HEDDLE_DEVICE_* it serves */
  uint32_t properties;     /* HEDDLE_PROP_* */
  uint32_t problem_size;   /* sizeof(heddle_attention_problem) it was compiled with */
  uint32_t call_size;      /* sizeof(heddle_attention_call) it was compiled with */

  /* One context per device. May allocate. Returns OK, REFUSED (with a text) or an error.
   * Concurrent for different devices. */
  uint32_t (*create)(const heddle_host* host, const heddle_device* device,
                     heddle_attention_ctx** ctx, heddle_text* err);
  void (*destroy)(heddle_attention_ctx* ctx);

  /* Any thread, also while calls run; a pure function of the problem. Returns OK also for a "no";
   * anything else is a failure of the plugin. */
  uint32_t (*query)(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                    heddle_attention_verdict* verdict);

  /* One at a time per ctx unless CTX_CONCURRENT. On CPU done when they return; on CUDA enqueued on
   * call->stream. NULL when the plugin does not offer the operation. */
  uint32_t (*forward)(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                      const heddle_attention_call* call);
  uint32_t (*backward)(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                       const heddle_attention_call* call);
  uint32_t (*decode)(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                     const heddle_attention_call* call);
} heddle_attention_plugin;

/* The one exported function: `const heddle_attention_plugin* heddle_attention_plugin_v1(host, err)`.
 * Called once per process, before anything else, on one thread. Touches no device, starts no
 * thread. Returns NULL and a text to refuse the whole machine. */
typedef const heddle_attention_plugin* (*heddle_attention_entry_v1)(const heddle_host* host,
                                                                    heddle_text* err);

/* ---- helpers shared by host and plugins ----------------------------------------------------- */

/* The feature bits that a problem uses; one definition, so that both sides agree. */
static inline uint64_t heddle_attention_required_features(const heddle_attention_problem* p) {
  uint64_t f = 0;
  if (p->mask == HEDDLE_MASK_CAUSAL) f |= HEDDLE_FEATURE_CAUSAL;
  if (p->window_left >= 0) f |= HEDDLE_FEATURE_WINDOW_LEFT;
  if (p->n_head != p->n_kv_head) f |= HEDDLE_FEATURE_GQA;
  if (p->op != HEDDLE_OP_DECODE &&
      (p->q_pos0 != 0 || p->k_pos0 != 0 || p->q_len != p->k_len)) {
    f |= HEDDLE_FEATURE_POS_OFFSET;
  }
  if (p->flags & HEDDLE_FLAG_LSE_OUT) f |= HEDDLE_FEATURE_LSE_OUT;
  if (p->flags & HEDDLE_FLAG_DETERMINISTIC) f |= HEDDLE_FEATURE_DETERMINISTIC;
  if (p->op == HEDDLE_OP_DECODE) f |= HEDDLE_FEATURE_KV_LEN;
  return f;
}

#ifdef __cplusplus
}
#endif

/* ---- compatibility within major 1 ------------------------------------------------------------
 *
 * Promises (tests/unit/plugins/abi keeps every published header and holds us to them)
 *   - A field never moves, changes its type or its meaning; a value is never reused. New fields come
 *     at the end of a struct and carry the minor that brought them; structs stay multiples of 8.
 *   - A plugin that was built against any minor of major 1 runs in every later host of major 1, and
 *     a plugin of a later minor runs in every earlier host.
 *
 * How both sides keep them
 *   - Who reads a struct that the other side wrote reads no byte at or beyond its struct_size, and
 *     takes a missing field for zero. Zero always means what was the case before the field existed.
 *     A struct_size below HEDDLE_..._SIZE_1_0 is an error; one above sizeof is not.
 *   - Who fills a struct zeroes all of it first and sets struct_size to its own sizeof. A plugin
 *     says in problem_size and call_size how much of those structs it knows.
 *   - A new meaning that would make an old plugin compute the wrong thing gets a feature bit in
 *     0..31. The host compares required_features with known_features and refuses on behalf of a
 *     plugin that lacks the bit: it is never called. Bits in 32..63 are hints; who does not know one
 *     ignores it. A plugin refuses with HEDDLE_REASON_FEATURE what it finds in flags and does not
 *     know.
 *   - Unknown bits in known_features and properties, unknown reason codes and unknown status values
 *     are no error: the host prints their number.
 *   - abi_minor is for messages only. Nothing is decided by comparing it.
 *
 * A change that cannot keep these rules makes heddle_attention_plugin_v2. A library may export
 * several majors at once.
 */

#endif /* HEDDLE_ATTENTION_H */
