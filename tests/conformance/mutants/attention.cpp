// Attention by its definition, with doubles, and what can be made wrong about it.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/conformance/mutants/mutant_plugin.h"

namespace heddle::mutants {
namespace {

using M = Mutant;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Task {
  heddle_attention_ctx* ctx;
  const heddle_attention_problem* p;
  const heddle_attention_call* call;
  std::atomic<int64_t> arrivals{0};
};

template <class T>
T* row(const void* data, const heddle_strides& s, int64_t b, int64_t t, int64_t h) {
  return static_cast<T*>(const_cast<void*>(data)) + b * s.batch + t * s.token + h * s.head;
}

float as_half(double x) {  // 11 bits
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(fraction * 2048.0) / 2048.0, exponent));
}

// One batch row of a problem, as the (possibly wrong) plugin sees it.
class Rows {
 public:
  Rows(const Task& task, int64_t b, uint32_t worker) : p_(*task.p), call_(*task.call), b_(b) {
    const int64_t floats = static_cast<int64_t>(worker_floats(p_));
    auto* base = static_cast<double*>(call_.workspace) + worker * floats;
    static double shared[1 << 16];
    if (is(M::kStaticBuffer) && floats < (1 << 16)) base = shared;
    scores = base;
    dp = scores + p_.k_len;
    dk = dp + p_.k_len;
    dv = dk + p_.k_len * p_.head_dim;
    if (p_.op != HEDDLE_OP_DECODE) return;
    length_ = call_.kv_len[is(M::kLengthOfRowZero) ? 0 : b];
    if (is(M::kReadPastLength)) length_ = std::min(length_ + 1, p_.k_len);
    if (is(M::kNewestMissing)) --length_;
  }

  int64_t group() const { return p_.n_head / p_.n_kv_head; }
  int64_t kv_head(int64_t h) const {
    if (is(M::kHeadModulo)) return h % p_.n_kv_head;
    if (is(M::kHeadFirst)) return 0;
    if (is(M::kOddGroupLast) && group() % 2 == 1 && group() > 1) {
      return std::min(h / (group() - 1), int64_t{p_.n_kv_head} - 1);
    }
    return h / group();
  }
  int64_t keys() const { return p_.op == HEDDLE_OP_DECODE ? length_ : p_.k_len; }
  int64_t key_batch() const { return is(M::kBatchFirst) ? 0 : b_; }
  const float* q(int64_t i, int64_t h) const { return row<float>(call_.q, p_.q, b_, i, h); }
  const float* k(int64_t j, int64_t h) const {
    return row<float>(call_.k, p_.k, key_batch(), j, kv_head(h));
  }
  const float* v(int64_t j, int64_t h) const {
    return row<float>(call_.v, p_.v, key_batch(), is(M::kInt16Index) ? j % 32768 : j, kv_head(h));
  }

  bool visible(int64_t i, int64_t j) const;
  // Scores and probabilities of a row; returns its lse.
  double softmax(int64_t i, int64_t h);
  double score(int64_t i, int64_t j, int64_t h) const;

  double *scores, *dp, *dk, *dv;
  int64_t first = 0, last = 0;  // keys outside of [first, last) have a score of 0

 private:
  void find_span();

  int64_t position(int64_t i) const {
    if (p_.op == HEDDLE_OP_DECODE) {
      const int64_t before = is(M::kLengthBeforeAppend) ? length_ : length_ - p_.q_len;
      return is(M::kTopLeft) ? i : before + i;
    }
    if (is(M::kTopLeft)) return i;
    if (is(M::kBottomRight)) return i + p_.k_len - p_.q_len;
    return p_.q_pos0 + i;
  }
  int64_t key_position(int64_t j) const {
    const bool relative = is(M::kTopLeft) || is(M::kBottomRight) || is(M::kKPosIgnored);
    return relative ? j : p_.k_pos0 + j;
  }
  bool in_window(int64_t i, int64_t j, int64_t behind) const;
  double effective_scale() const;

  const heddle_attention_problem& p_;
  const heddle_attention_call& call_;
  int64_t b_;
  int64_t length_ = 0;
};

bool Rows::in_window(int64_t i, int64_t j, int64_t behind) const {
  int64_t w = p_.window_left;
  if (w < 0 || is(M::kWindowIgnored)) return true;
  if (is(M::kWindowZeroUnlimited) && w == 0) return true;
  if (is(M::kWindowPlusOne)) ++w;
  if (is(M::kWindowMinusOne)) --w;
  if (is(M::kWrongBeyond4096) && j > 4096) ++w;
  if (is(M::kWindowFromIndex)) return i - j <= w;
  if (is(M::kWindowFromEnd)) return keys() - 1 - j <= w;
  if (is(M::kWindowBothSides)) return std::abs(behind) <= w;
  return behind <= w;
}

bool Rows::visible(int64_t i, int64_t j) const {
  if (j >= keys()) return false;
  const int64_t behind = position(i) - key_position(j);
  bool causal = p_.mask == HEDDLE_MASK_CAUSAL;
  if (is(M::kMaskAlwaysCausal)) causal = true;
  if (is(M::kCausalIgnored)) causal = false;
  if (is(M::kDecodeNoCausal) && p_.op == HEDDLE_OP_DECODE) causal = false;
  const int64_t least = is(M::kCausalStrict) ? 1 : is(M::kCausalPlusOne) ? -1 : 0;
  if (is(M::kTailTileDropped) && j >= keys() / 16 * 16 && keys() > 16) return false;
  return (!causal || behind >= least) && in_window(i, j, behind);
}

double Rows::effective_scale() const {
  const double scale = p_.scale;
  if (is(M::kScaleMissing)) return 1.0;
  if (is(M::kScaleKOnly)) return std::sqrt(scale);
  if (is(M::kScaleTwice)) return scale * scale;
  if (is(M::kScaleOwn)) return 1.0 / std::sqrt(static_cast<double>(p_.head_dim));
  return is(M::kExpTwo) ? scale * std::log(2.0) : scale;
}

double Rows::score(int64_t i, int64_t j, int64_t h) const {
  const float* a = q(i, h);
  const float* b = k(j, h);
  double sum = 0.0;
  const int64_t dims = is(M::kWrongDim80) && p_.head_dim == 80 ? 64 : p_.head_dim;
  for (int64_t d = 0; d < dims; ++d) sum += static_cast<double>(a[d]) * b[d];
  sum *= effective_scale();
  if (is(M::kHalfPrecision)) return as_half(sum);
  if (is(M::kFp16Overflow) && std::fabs(sum) > 65504.0 / 16.0)
    return sum > 0 ? kInfinity : -kInfinity;
  return sum;
}

void Rows::find_span() {
  first = 0;
  last = p_.k_len;
  while (first < last && scores[first] == 0.0) ++first;
  while (last > first && scores[last - 1] == 0.0) --last;
}

double Rows::softmax(int64_t i, int64_t h) {
  double top = -kInfinity, sum = 0.0;
  bool any = false;
  for (int64_t j = 0; j < p_.k_len; ++j) {
    scores[j] = -kInfinity;
    if (!visible(i, j)) {
      if (is(M::kHiddenAsZero) && j < keys()) scores[j] = 0.0;
      if (is(M::kEmptyUniform) && j < keys()) scores[j] = -1e9;
      if (scores[j] == -kInfinity) continue;
    } else {
      scores[j] = score(i, j, h);
    }
    any = true;
    top = std::max(top, scores[j]);
  }
  if (is(M::kNoMax)) top = 0.0;
  for (int64_t j = 0; j < p_.k_len; ++j) {
    if (scores[j] == -kInfinity && !is(M::kEmptyNan)) {
      scores[j] = 0.0;
      continue;
    }
    const double x = scores[j] - top;
    scores[j] = is(M::kNoMax) ? std::exp(static_cast<float>(x)) : std::exp(x);
    sum += scores[j];
  }
  find_span();
  if (!any && !is(M::kEmptyNan)) {
    return is(M::kLseEmptyInf) ? kInfinity : is(M::kLseEmptyZero) ? 0.0 : -kInfinity;
  }
  if (!is(M::kNotNormalised)) {
    for (int64_t j = first; j < last; ++j) scores[j] /= sum;
  }
  if (is(M::kLseNoMax)) return std::log(sum);
  const double lse = top + std::log(sum);
  return is(M::kLseBaseTwo) ? lse / std::log(2.0) : lse;
}

int64_t lse_index(const heddle_attention_problem& p, int64_t b, int64_t h, int64_t i) {
  if (is(M::kLseStride)) return (b * p.n_head + h) * p.q_len + i;
  return b * p.lse_stride_batch + h * p.lse_stride_head + i;
}

bool leave_row_alone(const heddle_attention_problem& p, int64_t i) {
  return is(M::kLastRowUnwritten) && i == p.q_len - 1 && p.q_len > 2;
}

void attend(Task& task, Rows& rows, int64_t b, int64_t h, int64_t i) {
  const heddle_attention_problem& p = *task.p;
  const heddle_attention_call& call = *task.call;
  const bool tail = is(M::kTailTimesZero) && p.op == HEDDLE_OP_DECODE;
  const bool behind = is(M::kBehindWindowTimesZero) && p.op == HEDDLE_OP_DECODE;
  const double lse = rows.softmax(i, h);
  if (p.flags & HEDDLE_FLAG_LSE_OUT) call.lse[lse_index(p, b, h, i)] = static_cast<float>(lse);
  if (leave_row_alone(p, i)) return;
  float* out = row<float>(call.out, p.out, b, i, h);
  if (is(M::kStridesIgnored)) {
    out = static_cast<float*>(call.out) + ((b * p.q_len + i) * p.n_head + h) * p.head_dim;
  }
  for (int64_t d = 0; d < p.head_dim; ++d) {
    double sum = is(M::kWorkspaceUsed) ? rows.dp[0] : is(M::kZeroAssumed) ? out[d] : 0.0;
    const bool all = tail || behind;
    for (int64_t j = all ? 0 : rows.first; j < (all ? p.k_len : rows.last); ++j) {
      const bool read =
          rows.scores[j] != 0.0 || (tail && j >= rows.keys()) || (behind && j < rows.keys());
      if (read) sum += rows.scores[j] * rows.v(j, h)[d];
    }
    if (is(M::kWrongAtOne) && p.q_len == 1) sum *= 2.0;
    out[d] = static_cast<float>(sum);
  }
  if (is(M::kGapWritten) && h == p.n_head - 1) out[p.head_dim] = 0.0f;
}

double group_weight(const Rows& rows, int64_t h) {
  if (is(M::kGroupMean)) return 1.0 / static_cast<double>(rows.group());
  if (is(M::kNoGroupSum)) return h % rows.group() == rows.group() - 1 ? 1.0 : 0.0;
  return 1.0;
}

void differentiate(Task& task, Rows& rows, int64_t b, int64_t h, int64_t i) {
  const heddle_attention_problem& p = *task.p;
  const heddle_attention_call& call = *task.call;
  rows.softmax(i, h);
  const float* dout = row<float>(call.dout, p.dout, b, i, h);
  double delta = 0.0;
  for (int64_t j = rows.first; j < rows.last; ++j) {
    rows.dp[j] = 0.0;
    if (rows.scores[j] == 0.0) continue;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      rows.dp[j] += static_cast<double>(dout[d]) * rows.v(j, h)[d];
    }
    delta += rows.scores[j] * rows.dp[j];
  }
  if (is(M::kNoDelta)) delta = 0.0;
  const double weight = is(M::kDvFirstRowMissing) && i == 0 ? 0.0 : group_weight(rows, h);
  float* dq = row<float>(call.dq, p.dq, b, i, h);
  const bool write = !leave_row_alone(p, i);
  const bool empty = is(M::kEmptyGradientNan) && !rows.visible(i, 0) && p.q_len > p.k_len;
  for (int64_t d = 0; d < p.head_dim; ++d) {
    double sum = 0.0;
    for (int64_t j = rows.first; j < rows.last; ++j) {
      if (rows.scores[j] == 0.0) continue;
      const double ds = rows.scores[j] * (rows.dp[j] - delta) * p.scale;
      const bool skip = is(M::kDqSkipsBlock) && j / 32 == 1;
      if (!skip) sum += ds * rows.k(j, h)[d];
      const int64_t n = j * p.head_dim + d;
      rows.dk[n] += weight * ds * rows.q(i, h)[d] / (is(M::kDkNoScale) ? p.scale : 1.0);
      rows.dv[n] += weight * rows.scores[j] * dout[d];
    }
    if (is(M::kDqNoScale)) sum /= p.scale;
    if (is(M::kWrongAtOne) && p.q_len == 1) sum += 0.5;
    if (write) dq[d] = empty ? std::nanf("") : static_cast<float>(sum);
  }
}

void write_key_gradients(Task& task, Rows& rows, int64_t b, int64_t kv) {
  const heddle_attention_problem& p = *task.p;
  if (is(M::kDkDvSwapped)) std::swap(rows.dk, rows.dv);
  for (int64_t j = 0; j < p.k_len; ++j) {
    float* dk = row<float>(task.call->dk, p.dk, b, j, kv);
    float* dv = row<float>(task.call->dv, p.dv, b, j, kv);
    for (int64_t d = 0; d < p.head_dim; ++d) {
      const int64_t n = j * p.head_dim + d;
      dk[d] = static_cast<float>(rows.dk[n]) + (is(M::kDkAccumulates) ? dk[d] : 0.0f);
      dv[d] = static_cast<float>(rows.dv[n]);
    }
  }
}

// What a worker does wrong before its rows.
void spoil_worker(Task& task, uint32_t worker) {
  const heddle_attention_problem& p = *task.p;
  if (is(M::kWorkerMxcsr)) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
  if (is(M::kSegfaultOdd) && p.q_len % 2 == 1 && p.q_len > 1) {
    *static_cast<volatile int*>(nullptr) = 1;
  }
  if (is(M::kWorkspaceOverrun)) {
    auto* end = static_cast<char*>(task.call->workspace) + task.call->workspace_bytes;
    std::memset(end, 0, 4);
  }
  (void)worker;
}

void forward_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  Task& task = *static_cast<Task*>(arg);
  const heddle_attention_problem& p = *task.p;
  spoil_worker(task, worker);
  const int64_t arrival = task.arrivals.fetch_add(1);
  for (int64_t n = begin; n < end; ++n) {
    const int64_t b = n / p.n_head, h = n % p.n_head;
    Rows rows(task, b, is(M::kWorkerIndex) ? 0 : worker);
    for (int64_t i = 0; i < p.q_len; ++i) {
      attend(task, rows, b, h, i);
      float* out = row<float>(task.call->out, p.out, b, i, h);
      if (is(M::kNotDeterministic) && arrival % 2 == 1) out[0] = std::nextafter(out[0], 1e9f);
      if (is(M::kOneWorkerWrong) && worker == 2) out[0] += 1.0f;
    }
  }
}

// A unit is a (batch row, kv head): its dk and dv sums belong to one worker.
void backward_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  Task& task = *static_cast<Task*>(arg);
  const heddle_attention_problem& p = *task.p;
  spoil_worker(task, worker);
  for (int64_t n = begin; n < end; ++n) {
    const int64_t b = n / p.n_kv_head, kv = n % p.n_kv_head;
    Rows rows(task, b, is(M::kWorkerIndex) ? 0 : worker);
    std::memset(rows.dk, 0, sizeof(double) * static_cast<size_t>(2 * p.k_len * p.head_dim));
    for (int64_t h = 0; h < p.n_head; ++h) {
      if (h / rows.group() != kv) continue;
      for (int64_t i = 0; i < p.q_len; ++i) differentiate(task, rows, b, h, i);
    }
    write_key_gradients(task, rows, b, kv);
  }
}

// dk and dv summed by all workers into the outputs, without a lock. The gradients of a query head
// are computed as if it were alone, into the worker's area.
void racing_body(void* arg, int64_t begin, int64_t end, uint32_t worker) {
  Task& task = *static_cast<Task*>(arg);
  const heddle_attention_problem& p = *task.p;
  for (int64_t n = begin; n < end; ++n) {
    const int64_t b = n / p.n_head, h = n % p.n_head;
    Rows rows(task, b, worker);
    std::memset(rows.dk, 0, sizeof(double) * static_cast<size_t>(2 * p.k_len * p.head_dim));
    for (int64_t i = 0; i < p.q_len; ++i) differentiate(task, rows, b, h, i);
    for (int64_t j = 0; j < p.k_len; ++j) {
      volatile float* dk = row<float>(task.call->dk, p.dk, b, j, h / rows.group());
      volatile float* dv = row<float>(task.call->dv, p.dv, b, j, h / rows.group());
      for (int64_t d = 0; d < p.head_dim; ++d) {
        dk[d] = dk[d] + static_cast<float>(rows.dk[j * p.head_dim + d]);
        dv[d] = dv[d] + static_cast<float>(rows.dv[j * p.head_dim + d]);
      }
    }
  }
}

void zero_key_gradients(const heddle_attention_problem& p, const heddle_attention_call& call) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t j = 0; j < p.k_len; ++j) {
      for (int64_t h = 0; h < p.n_kv_head; ++h) {
        std::fill_n(row<float>(call.dk, p.dk, b, j, h), p.head_dim, 0.0f);
        std::fill_n(row<float>(call.dv, p.dv, b, j, h), p.head_dim, 0.0f);
      }
    }
  }
}

// Reads and writes that have nothing to do with the numbers.
void touch_memory(const heddle_attention_problem& p, const heddle_attention_call& call) {
  const int64_t last = (p.batch - 1) * p.k.batch + (p.k_len - 1) * p.k.token +
                       (p.n_kv_head - 1) * p.k.head + p.head_dim;
  if (p.batch == 0 || p.k_len == 0) return;
  const auto* k = static_cast<const volatile float*>(call.k);
  if (is(M::kReadsBehind)) (void)k[last];
  if (is(M::kReadsBefore)) (void)k[-1];
  if (is(M::kInputChanged)) static_cast<float*>(const_cast<void*>(call.q))[0] *= 1.5f;
  if (is(M::kKvLenChanged) && call.kv_len) ++const_cast<int32_t*>(call.kv_len)[0];
}

uint32_t run(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
             const heddle_attention_call* call, heddle_parallel_body body, int64_t units) {
  misbehave(ctx, *p);
  if (is(M::kSaysYesThenRefuses) && p->q_len == 7) return HEDDLE_UNSUPPORTED;
  // Takes the workspace's bytes for a result of its own from earlier.
  if (is(M::kWorkspaceKept) && call->workspace_bytes >= 16) {
    auto* mark = static_cast<uint64_t*>(call->workspace);
    if (mark[0] == 0x686464656c6dull) return HEDDLE_OK;
  }
  Task task{ctx, p, call, {}};
  touch_memory(*p, *call);
  ctx->host->parallel_for(ctx->host->user, units, 1, body, &task);
  if (is(M::kWorkspaceKept) && call->workspace_bytes >= 16) {
    static_cast<uint64_t*>(call->workspace)[0] = 0x686464656c6dull;
  }
  return HEDDLE_OK;
}

}  // namespace

uint64_t worker_floats(const heddle_attention_problem& p) {
  return static_cast<uint64_t>(2 * p.k_len + 2 * p.k_len * p.head_dim);
}

uint32_t forward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                 const heddle_attention_call* call) {
  return run(ctx, p, call, forward_body, p->batch * p->n_head);
}

uint32_t decode(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                const heddle_attention_call* call) {
  return run(ctx, p, call, forward_body, p->batch * p->n_head);
}

uint32_t backward(heddle_attention_ctx* ctx, const heddle_attention_problem* p,
                  const heddle_attention_call* call) {
  if (is(M::kRace)) {
    zero_key_gradients(*p, *call);
    return run(ctx, p, call, racing_body, p->batch * p->n_head);
  }
  return run(ctx, p, call, backward_body, p->batch * p->n_kv_head);
}

}  // namespace heddle::mutants
