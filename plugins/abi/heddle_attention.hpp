// heddle_attention.hpp - the attention plugin ABI for C++20 authors. Header-only, no dependency but
// the standard library and heddle_attention.h beside it.
//
// A backend is a class; the macro at the end makes the exported function and the table:
//
//   class Mine {
//    public:
//     Mine(Host host, const heddle_device& device);  // Failure(HEDDLE_REFUSED, "why"): not here
//     void query(const Problem& problem, Answer& answer) const;  // reasons, or size and kernel
//     void forward(const Call& call);
//     void backward(const Call& call);                         // may be left out, like decode
//     void decode(const Call& call);
//   };
//   HEDDLE_ATTENTION_PLUGIN(Mine, {.name = "mine", .version = "1.0", .description = "..."})
//
// What the header does for it: sizes of structs of other minors, NULL and range checks of every
// call, exceptions to status and text at the boundary (also out of parallel_for bodies), functions
// that the class lacks become NULL. Nothing here allocates unless something is thrown.
#ifndef HEDDLE_ATTENTION_HPP
#define HEDDLE_ATTENTION_HPP

#include <atomic>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>
#include <utility>

#if __has_include(<heddle/heddle_attention.h>)
#include <heddle/heddle_attention.h>
#else
#include <heddle_attention.h>
#endif

// Hidden, so that two plugins in one process share nothing.
#pragma GCC visibility push(hidden)
namespace heddle::attention {

// ---- failures ----

// Becomes a status and a text at the boundary. printf format, cut to 255 bytes, no allocation.
class Failure : public std::exception {
 public:
  [[gnu::format(printf, 3, 4)]] Failure(uint32_t status, const char* format, ...) noexcept
      : status_(status) {
    std::va_list args;
    va_start(args, format);
    std::vsnprintf(text_, sizeof text_, format, args);
    va_end(args);
  }
  const char* what() const noexcept override { return text_; }
  uint32_t status() const noexcept { return status_; }

 private:
  uint32_t status_;
  char text_[256];
};

inline void require_size(uint32_t got, uint32_t least, const char* what) {
  if (got >= least) return;
  throw Failure(HEDDLE_INVALID_ARG, "the %s is smaller than that of ABI 1.0", what);
}

inline void write_text(heddle_text* text, const char* message) noexcept {
  if (text == nullptr) return;
  text->len = static_cast<uint32_t>(std::strlen(message));
  if (text->buf != nullptr && text->cap > 0) {
    std::snprintf(text->buf, text->cap, "%s", message);
  }
}

// Runs f; what it throws becomes a status, and a text in err.
template <class F>
uint32_t guarded(heddle_text* err, F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return HEDDLE_OK;
  } catch (const Failure& failure) {
    write_text(err, failure.what());
    return failure.status();
  } catch (const std::exception& error) {
    write_text(err, error.what());
    return HEDDLE_INTERNAL;
  } catch (...) {
    write_text(err, "an exception of unknown type");
    return HEDDLE_INTERNAL;
  }
}

// ---- the host ----

class Host {
 public:
  explicit Host(const heddle_host* host) : host_(host) {}

  // level: 0 debug, 1 info, 2 warning, 3 error.
  void log(uint32_t level, const char* utf8) const { host_->log(host_->user, level, utf8); }
  uint32_t num_workers() const {
    const uint32_t n = host_->num_workers(host_->user);
    return n > 0 ? n : 1;
  }

  // body(begin, end, worker) over [0, n) in pieces of at least `grain`. The first exception that
  // a body throws is thrown again here when all are done.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) const {
    Job<std::remove_reference_t<Body>> job{&body, nullptr, {}};
    host_->parallel_for(host_->user, n, grain, &Job<std::remove_reference_t<Body>>::run, &job);
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  template <class Body>
  struct Job {
    Body* body;
    std::exception_ptr failure;
    std::atomic_flag failed;

    static void run(void* arg, int64_t begin, int64_t end, uint32_t worker) {
      Job& job = *static_cast<Job*>(arg);
      try {
        (*job.body)(begin, end, worker);
      } catch (...) {
        if (!job.failed.test_and_set()) job.failure = std::current_exception();
      }
    }
  };

  const heddle_host* host_;
};

// ---- problems ----

// Indices [begin, end); empty when end <= begin.
struct Range {
  int64_t begin = 0, end = 0;
  bool empty() const { return end <= begin; }
};

// A problem as this header knows it: fields that an older host does not have are zero. Reads like
// a pointer to heddle_attention_problem.
class Problem {
 public:
  // Throws Failure (INVALID_ARG) when it is smaller than that of ABI 1.0.
  explicit Problem(const heddle_attention_problem* p) {
    require_size(p->struct_size, HEDDLE_PROBLEM_SIZE_1_0, "problem");
    std::memcpy(&p_, p, p->struct_size < sizeof p_ ? p->struct_size : sizeof p_);
  }

  const heddle_attention_problem* operator->() const { return &p_; }
  const heddle_attention_problem& operator*() const { return p_; }

  bool causal() const { return p_.mask == HEDDLE_MASK_CAUSAL; }
  bool wants_lse() const { return (p_.flags & HEDDLE_FLAG_LSE_OUT) != 0; }
  int64_t group() const { return p_.n_head / p_.n_kv_head; }  // query heads of a kv head
  int64_t kv_head(int64_t h) const { return h / group(); }

  // FORWARD, BACKWARD: keys that query i sees; queries that see key j.
  Range keys_of_query(int64_t i) const { return keys(p_.q_pos0 + i - p_.k_pos0, p_.k_len); }
  Range queries_of_key(int64_t j) const {
    const int64_t self = p_.k_pos0 + j - p_.q_pos0;  // the query at the key's own position
    return {causal() ? clamp(self, p_.q_len) : 0,
            windowed() ? clamp(self + p_.window_left + 1, p_.q_len) : p_.q_len};
  }
  // DECODE: keys that query i sees in a row whose cache holds kv_len tokens.
  Range keys_of_query(int64_t i, int64_t kv_len) const {
    return keys(kv_len - p_.q_len + i, kv_len);
  }

 private:
  // A window too wide for any position counts as none, which also keeps sums within int64.
  bool windowed() const { return p_.window_left >= 0 && p_.window_left < (INT64_C(1) << 61); }
  static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }
  Range keys(int64_t self, int64_t n) const {
    return {windowed() ? clamp(self - p_.window_left, n) : 0, causal() ? clamp(self + 1, n) : n};
  }

  heddle_attention_problem p_{};
};

// ---- answers to query() ----

// Collects the reasons of a no, or what a yes promises. All reasons are counted, also those for
// which the host has no room.
class Answer {
 public:
  explicit Answer(heddle_attention_verdict* verdict) : v_(verdict) {
    v_->supported = 1;
    v_->workspace_bytes = 0;
    v_->workspace_align = 0;
    v_->est_time_us = 0.0;
    v_->reason_count = 0;
    v_->kernel[0] = '\0';
  }

  // field: a field of heddle_attention_problem; want: "in{64,128}", "in[1,256]", "<=256", ">=4",
  // "==1", "%8==0", "divides n_head"; hint: what the user can do.
  Answer& refuse(uint32_t code, std::string_view field, std::string_view got, std::string_view want,
                 std::string_view hint = {}) {
    v_->supported = 0;
    const uint32_t n = v_->reason_count++;
    if (v_->reasons == nullptr || n >= v_->reason_capacity) return *this;
    heddle_attention_reason& r = v_->reasons[n];
    std::memset(&r, 0, sizeof r);
    r.code = code;
    copy(r.field, sizeof r.field, field);
    copy(r.got, sizeof r.got, got);
    copy(r.want, sizeof r.want, want);
    copy(r.hint, sizeof r.hint, hint);
    return *this;
  }
  // A reason unless `ok`.
  Answer& require(bool ok, uint32_t code, std::string_view field, int64_t got,
                  std::string_view want, std::string_view hint = {}) {
    if (ok) return *this;
    char text[32];
    std::snprintf(text, sizeof text, "%" PRId64, got);
    return refuse(code, field, text, want, hint);
  }
  bool accepted() const { return v_->supported == 1; }

  // Bytes of scratch memory that a call needs; refuses when the host allows less.
  Answer& workspace(uint64_t bytes, const Problem& p, uint64_t align = 64) {
    v_->workspace_bytes = bytes;
    v_->workspace_align = align;
    char want[32];
    std::snprintf(want, sizeof want, ">=%" PRIu64, bytes);
    return require(p->max_workspace == 0 || bytes <= p->max_workspace, HEDDLE_REASON_WORKSPACE,
                   "max_workspace", static_cast<int64_t>(p->max_workspace), want,
                   "allow a larger workspace");
  }
  void estimate_us(double us) { v_->est_time_us = us; }
  void kernel(std::string_view name) { copy(v_->kernel, sizeof v_->kernel, name); }

 private:
  static void copy(char* to, size_t size, std::string_view from) {
    const size_t n = from.size() < size - 1 ? from.size() : size - 1;
    std::memcpy(to, from.data(), n);
    to[n] = '\0';
  }
  heddle_attention_verdict* v_;
};

// Every feature of ABI 1.0.
inline constexpr uint64_t kFeatures10 = HEDDLE_FEATURE_CAUSAL | HEDDLE_FEATURE_WINDOW_LEFT |
                                        HEDDLE_FEATURE_GQA | HEDDLE_FEATURE_POS_OFFSET |
                                        HEDDLE_FEATURE_LSE_OUT | HEDDLE_FEATURE_DETERMINISTIC |
                                        HEDDLE_FEATURE_KV_LEN;

// Refuses what no backend may accept: values that the header does not have, heads that do not
// divide, lengths and windows below their least, positions in DECODE. A query() begins with it
// and goes on to its own limits.
inline void require_valid(const Problem& p, Answer& a) {
  const bool decode = p->op == HEDDLE_OP_DECODE;
  const auto least = [&](int64_t x, int64_t n, uint32_t code, const char* field) {
    a.require(x >= n, code, field, x, n < 0 ? ">=-1" : n == 0 ? ">=0" : ">=1");
  };
  const auto position = [&](int64_t x, const char* field) {
    constexpr int64_t kFar = 1000000000000;  // keeps sums of positions within int64
    a.require(decode ? x == 0 : x >= -kFar && x <= kFar, HEDDLE_REASON_POSITION, field, x,
              decode ? "==0" : "in[-1000000000000,1000000000000]");
  };
  a.require(p->op >= 1 && p->op <= 3, HEDDLE_REASON_OP, "op", p->op, "in{1,2,3}");
  a.require(p->dtype >= 1 && p->dtype <= 3, HEDDLE_REASON_DTYPE, "dtype", p->dtype, "in{1,2,3}");
  a.require(p->mask <= HEDDLE_MASK_CAUSAL, HEDDLE_REASON_MASK, "mask", p->mask, "in{0,1}");
  a.require(p->flags <= 3, HEDDLE_REASON_FEATURE, "flags", p->flags, "<=3");
  least(p->head_dim, 1, HEDDLE_REASON_HEAD_DIM, "head_dim");
  least(p->n_head, 1, HEDDLE_REASON_HEADS, "n_head");
  a.require(p->n_kv_head >= 1 && p->n_head % p->n_kv_head == 0, HEDDLE_REASON_HEADS, "n_kv_head",
            p->n_kv_head, "divides n_head", "set model.n_kv_head to a divisor of model.n_head");
  least(p->batch, 0, HEDDLE_REASON_LENGTH, "batch");
  least(p->q_len, 0, HEDDLE_REASON_LENGTH, "q_len");
  least(p->k_len, 0, HEDDLE_REASON_LENGTH, "k_len");
  least(p->window_left, -1, HEDDLE_REASON_WINDOW, "window_left");
  position(p->q_pos0, "q_pos0");
  position(p->k_pos0, "k_pos0");
}

// ---- calls ----

// (batch, token, head, dim) in memory: rows of `dim` elements.
template <class T>
class Rows {
 public:
  Rows(T* data, const heddle_strides& strides, int64_t dim)
      : data_(data), strides_(strides), dim_(static_cast<size_t>(dim)) {}
  std::span<T> operator()(int64_t b, int64_t token, int64_t head) const {
    return {data_ + b * strides_.batch + token * strides_.token + head * strides_.head, dim_};
  }

 private:
  T* data_;
  heddle_strides strides_;
  size_t dim_;
};

// What forward, backward and decode get.
class Call {
 public:
  // Throws Failure (INVALID_ARG) naming what is missing.
  Call(uint32_t op, const heddle_attention_problem* p, const heddle_attention_call* call)
      : problem(p) {
    require_size(call->struct_size, HEDDLE_CALL_SIZE_1_0, "call");
    std::memcpy(&c_, call, call->struct_size < sizeof c_ ? call->struct_size : sizeof c_);
    if (problem->op != op) {
      throw Failure(HEDDLE_INVALID_ARG, "op is %u, expected %u for this function", problem->op, op);
    }
    check_pointers();
  }

  const Problem problem;

  Rows<const float> q() const { return rows<const float>(c_.q, problem->q); }
  Rows<const float> k() const { return rows<const float>(c_.k, problem->k); }
  Rows<const float> v() const { return rows<const float>(c_.v, problem->v); }
  Rows<const float> dout() const { return rows<const float>(c_.dout, problem->dout); }
  Rows<float> out() const { return rows<float>(c_.out, problem->out); }
  Rows<float> dq() const { return rows<float>(c_.dq, problem->dq); }
  Rows<float> dk() const { return rows<float>(c_.dk, problem->dk); }
  Rows<float> dv() const { return rows<float>(c_.dv, problem->dv); }
  // Of another dtype: rows<const MyHalf>(call.raw().q, call.problem->q).
  template <class T, class P>
  Rows<T> rows(P* p, const heddle_strides& strides) const {
    return {static_cast<T*>(p), strides, problem->head_dim};
  }

  // FORWARD and DECODE write it only when problem.wants_lse().
  float& lse(int64_t b, int64_t h, int64_t i) const {
    return c_.lse[b * problem->lse_stride_batch + h * problem->lse_stride_head + i];
  }
  // DECODE, on the CPU: valid tokens of a row.
  int64_t kv_len(int64_t b) const { return c_.kv_len[b]; }

  // `count` elements at `offset` bytes; throws Failure (INVALID_ARG) when the host gave less.
  template <class T>
  std::span<T> workspace(uint64_t offset, uint64_t count) const {
    if (count == 0) return {};
    if (c_.workspace == nullptr || offset + count * sizeof(T) > c_.workspace_bytes) {
      throw Failure(HEDDLE_INVALID_ARG,
                    "workspace_bytes: got %" PRIu64 ", expected at least %" PRIu64,
                    c_.workspace_bytes, offset + count * sizeof(T));
    }
    return {reinterpret_cast<T*>(static_cast<char*>(c_.workspace) + offset),
            static_cast<size_t>(count)};
  }
  void* stream() const { return c_.stream; }
  const heddle_attention_call& raw() const { return c_; }
  void need_lse() const { need(c_.lse, problem->batch * problem->q_len, "lse"); }

 private:
  static void need(const void* pointer, int64_t elements, const char* name) {
    if (pointer == nullptr && elements > 0) {
      throw Failure(HEDDLE_INVALID_ARG, "%s is NULL, expected an address", name);
    }
  }
  void check_pointers() const {
    const Problem& p = problem;
    const int64_t queries = p->batch * p->q_len, keys = p->batch * p->k_len;
    const bool backward = p->op == HEDDLE_OP_BACKWARD;
    need(c_.q, queries, "q");
    need(c_.k, keys, "k");
    need(c_.v, keys, "v");
    need(c_.out, queries, "out");
    if (p.wants_lse() && !backward) need_lse();
    if (p->op == HEDDLE_OP_DECODE) check_lengths();
    if (!backward) return;
    need(c_.dout, queries, "dout");
    need(c_.dq, queries, "dq");
    need(c_.dk, keys, "dk");
    need(c_.dv, keys, "dv");
  }
  // On a device the lengths lie there and are not read here.
  void check_lengths() const {
    need(c_.kv_len, problem->batch, "kv_len");
    if (problem->device_type != HEDDLE_DEVICE_CPU) return;
    for (int64_t b = 0; b < problem->batch; ++b) {
      if (c_.kv_len[b] >= 0 && c_.kv_len[b] <= problem->k_len) continue;
      throw Failure(HEDDLE_INVALID_ARG, "kv_len[%" PRId64 "]: got %d, expected 0 to %" PRId64, b,
                    c_.kv_len[b], problem->k_len);
    }
  }

  heddle_attention_call c_{};
};

// ---- the table ----

struct Info {
  const char* name;  // [a-z0-9_]+, what attention.backend names
  const char* version;
  const char* description;  // one line
  uint64_t known_features = kFeatures10;
  uint32_t properties = 0;  // HEDDLE_PROP_*
  uint32_t device_type = HEDDLE_DEVICE_CPU;
};

// The C functions of a class.
template <class Backend>
struct Functions {
  static inline Info info{};

  static Backend& self(heddle_attention_ctx* ctx) { return *reinterpret_cast<Backend*>(ctx); }

  static uint32_t create(const heddle_host* host, const heddle_device* device,
                         heddle_attention_ctx** ctx, heddle_text* err) {
    return guarded(err, [&] {
      require_size(device->struct_size, HEDDLE_DEVICE_SIZE_1_0, "device");
      if (device->type != info.device_type) {
        throw Failure(HEDDLE_REFUSED, "device type is %u, expected %u", device->type,
                      info.device_type);
      }
      *ctx = reinterpret_cast<heddle_attention_ctx*>(new Backend(Host(host), *device));
    });
  }
  static void destroy(heddle_attention_ctx* ctx) { delete &self(ctx); }

  static uint32_t query(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                        heddle_attention_verdict* verdict) {
    return guarded(nullptr, [&] {
      require_size(verdict->struct_size, HEDDLE_VERDICT_SIZE_1_0, "verdict");
      const Problem p(problem);
      Answer answer(verdict);
      answer.require(p->device_type == info.device_type, HEDDLE_REASON_DEVICE, "device_type",
                     p->device_type, info.device_type == HEDDLE_DEVICE_CPU ? "==1" : "==2",
                     "choose another attention.backend for this device");
      require_valid(p, answer);
      if (answer.accepted()) std::as_const(self(ctx)).query(p, answer);
    });
  }

  static uint32_t forward(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                          const heddle_attention_call* call) {
    return guarded(call->err, [&] { self(ctx).forward(Call(HEDDLE_OP_FORWARD, problem, call)); });
  }
  static uint32_t backward(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                           const heddle_attention_call* call) {
    return guarded(call->err, [&] {
      const Call c(HEDDLE_OP_BACKWARD, problem, call);
      if (!(info.properties & HEDDLE_PROP_NO_LSE)) c.need_lse();
      self(ctx).backward(c);
    });
  }
  static uint32_t decode(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                         const heddle_attention_call* call) {
    return guarded(call->err, [&] { self(ctx).decode(Call(HEDDLE_OP_DECODE, problem, call)); });
  }
};

template <class Backend>
heddle_attention_plugin make_table(const Info& info) {
  using F = Functions<Backend>;
  F::info = info;
  heddle_attention_plugin t{};
  t.struct_size = sizeof t;
  t.magic = HEDDLE_ATTENTION_MAGIC;
  t.abi_major = HEDDLE_ATTENTION_ABI_MAJOR;
  t.abi_minor = HEDDLE_ATTENTION_ABI_MINOR;
  t.name = info.name;
  t.version = info.version;
  t.description = info.description;
  t.known_features = info.known_features;
  t.device_type = info.device_type;
  t.properties = info.properties;
  t.problem_size = sizeof(heddle_attention_problem);
  t.call_size = sizeof(heddle_attention_call);
  t.create = F::create, t.destroy = F::destroy, t.query = F::query;
  if constexpr (requires(Backend & b, const Call& c) { b.forward(c); }) t.forward = F::forward;
  if constexpr (requires(Backend & b, const Call& c) { b.backward(c); }) t.backward = F::backward;
  if constexpr (requires(Backend & b, const Call& c) { b.decode(c); }) t.decode = F::decode;
  return t;
}

template <class Backend>
const heddle_attention_plugin* enter(const heddle_host* host, heddle_text* err, const Info& info) {
  if (host == nullptr || host->struct_size < HEDDLE_HOST_SIZE_1_0) {
    write_text(err, "the host's table is smaller than that of ABI 1.0");
    return nullptr;
  }
  static const heddle_attention_plugin table = make_table<Backend>(info);
  return &table;
}

}  // namespace heddle::attention
#pragma GCC visibility pop

// Defines the exported function. The other argument is a braced heddle::attention::Info.
#define HEDDLE_ATTENTION_PLUGIN(Backend, ...)                                                 \
  extern "C" HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(         \
      const heddle_host* host, heddle_text* err) {                                            \
    return heddle::attention::enter<Backend>(host, err, heddle::attention::Info __VA_ARGS__); \
  }                                                                                           \
  static_assert(true, "a semicolon may follow")

#endif  // HEDDLE_ATTENTION_HPP
