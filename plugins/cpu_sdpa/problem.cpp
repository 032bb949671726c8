#include "plugins/cpu_sdpa/problem.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "kernels/common/attention_ranges.h"

namespace heddle::cpu_sdpa {

using kernels::cpu::AttentionProblem;
using kernels::cpu::kMaxHeadDim;
using kernels::cpu::Launch;

namespace {

constexpr int64_t kMaxLength = int64_t{1} << 30;
constexpr int64_t kMaxPosition = int64_t{1} << 60;

// Collects reasons into the verdict; counts also those that have no room.
class Reasons {
 public:
  explicit Reasons(heddle_attention_verdict* verdict) : verdict_(verdict) {
    verdict_->reason_count = 0;
  }

  void add(uint32_t code, const char* field, const char* got, const char* want,
           const char* hint = "") {
    const uint32_t n = verdict_->reason_count++;
    if (!verdict_->reasons || n >= verdict_->reason_capacity) return;
    heddle_attention_reason& reason = verdict_->reasons[n];
    reason = {};
    reason.code = code;
    std::snprintf(reason.field, sizeof(reason.field), "%s", field);
    std::snprintf(reason.got, sizeof(reason.got), "%s", got);
    std::snprintf(reason.want, sizeof(reason.want), "%s", want);
    std::snprintf(reason.hint, sizeof(reason.hint), "%s", hint);
  }
  void add(uint32_t code, const char* field, int64_t got, const char* want, const char* hint = "") {
    char text[32];
    std::snprintf(text, sizeof(text), "%" PRId64, got);
    add(code, field, text, want, hint);
  }
  void require(bool ok, uint32_t code, const char* field, int64_t got, const char* want,
               const char* hint = "") {
    if (!ok) add(code, field, got, want, hint);
  }
  bool none() const { return verdict_->reason_count == 0; }

 private:
  heddle_attention_verdict* verdict_;
};

void check_kind(const heddle_attention_problem& p, Reasons& reasons) {
  reasons.require(p.device_type == HEDDLE_DEVICE_CPU, HEDDLE_REASON_DEVICE, "device_type",
                  p.device_type, "==1 (CPU)", "choose another attention.backend for this device");
  reasons.require(p.op >= HEDDLE_OP_FORWARD && p.op <= HEDDLE_OP_DECODE, HEDDLE_REASON_OP, "op",
                  p.op, "in{1,2,3}");
  reasons.require(p.dtype == HEDDLE_DTYPE_F32, HEDDLE_REASON_DTYPE, "dtype", p.dtype, "==1 (F32)",
                  "run the CPU device in fp32");
  reasons.require(p.mask == HEDDLE_MASK_NONE || p.mask == HEDDLE_MASK_CAUSAL, HEDDLE_REASON_MASK,
                  "mask", p.mask, "in{0,1}");
  reasons.require(p.align_bytes >= 4, HEDDLE_REASON_ALIGNMENT, "align_bytes", p.align_bytes, ">=4");
  constexpr uint32_t kFlags = HEDDLE_FLAG_LSE_OUT | HEDDLE_FLAG_DETERMINISTIC;
  reasons.require((p.flags & ~kFlags) == 0, HEDDLE_REASON_FEATURE, "flags", p.flags, "<=3");
  const uint64_t unknown = p.required_features & HEDDLE_FEATURE_MUST_UNDERSTAND & ~kKnownFeatures;
  if (unknown) {
    char bits[32];
    std::snprintf(bits, sizeof(bits), "0x%" PRIx64, unknown);
    reasons.add(HEDDLE_REASON_FEATURE, "required_features", bits, "no unknown bit",
                "use a cpu_sdpa as new as the host");
  }
}

void check_shape(const heddle_attention_problem& p, Reasons& reasons) {
  reasons.require(p.head_dim >= 1 && p.head_dim <= kMaxHeadDim, HEDDLE_REASON_HEAD_DIM, "head_dim",
                  p.head_dim, "in[1,256]", "choose n_head so that n_embd / n_head <= 256");
  reasons.require(p.n_head >= 1, HEDDLE_REASON_HEADS, "n_head", p.n_head, ">=1");
  const bool divides = p.n_kv_head >= 1 && p.n_head % p.n_kv_head == 0;
  reasons.require(divides, HEDDLE_REASON_HEADS, "n_kv_head", p.n_kv_head, "divides n_head",
                  "set model.n_kv_head to a divisor of model.n_head");
  reasons.require(p.batch >= 0 && p.batch < kMaxLength, HEDDLE_REASON_LENGTH, "batch", p.batch,
                  "in[0,2^30)");
  reasons.require(p.q_len >= 0 && p.q_len < kMaxLength, HEDDLE_REASON_LENGTH, "q_len", p.q_len,
                  "in[0,2^30)");
  reasons.require(p.k_len >= 0 && p.k_len < kMaxLength, HEDDLE_REASON_LENGTH, "k_len", p.k_len,
                  "in[0,2^30)");
  reasons.require(p.window_left >= -1 && p.window_left < kMaxPosition, HEDDLE_REASON_WINDOW,
                  "window_left", p.window_left, ">=-1", "-1 is the only negative window");
  const int64_t most = p.op == HEDDLE_OP_DECODE ? 0 : kMaxPosition;
  const char* want = p.op == HEDDLE_OP_DECODE ? "==0" : "|x|<=2^60";
  reasons.require(p.q_pos0 >= -most && p.q_pos0 <= most, HEDDLE_REASON_POSITION, "q_pos0", p.q_pos0,
                  want);
  reasons.require(p.k_pos0 >= -most && p.k_pos0 <= most, HEDDLE_REASON_POSITION, "k_pos0", p.k_pos0,
                  want);
}

// Seconds of one call: the products at their usual share of the peak, the exponentials in FLOP
// equivalents; decode by the stream of the cache.
double estimate_seconds(const Machine& machine, uint32_t op, const AttentionProblem& p,
                        const Launch& launch) {
  constexpr double kForwardShare = 0.9, kBackwardShare = 0.85;
  constexpr double kExpFlops = 40.0, kBackwardExpFlops = 50.0;
  constexpr double kCacheBytesPerSecond = 16e9, kSecondsPerTask = 1e-7, kSecondsPerCall = 2e-6;
  const auto dim = static_cast<double>(p.head_dim);
  const auto tasks = static_cast<double>(launch.tasks[0]);
  if (tasks == 0.0) return kSecondsPerCall;
  const double workers = machine.workers;
  // The share of the workers that is busy when tasks of equal cost do not divide among them.
  const double rounds = static_cast<double>(kernels::ceil_div(launch.tasks[0], machine.workers));
  const double busy = tasks / (rounds * workers);
  const double overhead = kSecondsPerCall + tasks * kSecondsPerTask / workers;
  if (op == HEDDLE_OP_DECODE) {
    const int64_t window = p.window_left < 0 ? p.k_len : p.window_left + p.q_len;
    const auto keys = static_cast<double>(kernels::min_i64(p.k_len, window));
    const double bytes = static_cast<double>(p.batch * p.n_kv_head) * keys * dim * 8.0;
    return overhead + bytes / (kCacheBytesPerSecond * workers * busy);
  }
  const kernels::AttentionMask mask{p.q_len, p.k_len, p.q_pos0, p.k_pos0, p.window_left, p.causal};
  const double pairs =
      static_cast<double>(kernels::visible_pairs(mask)) * static_cast<double>(p.batch * p.n_head);
  const double flops = op == HEDDLE_OP_FORWARD ? 4.0 * dim / kForwardShare + kExpFlops
                                               : 10.0 * dim / kBackwardShare + kBackwardExpFlops;
  return overhead + pairs * flops / (machine.flops_per_second * busy);
}

}  // namespace

AttentionProblem translate(const heddle_attention_problem& p) {
  const auto strides = [](const heddle_strides& s) {
    return kernels::cpu::TensorStrides{s.batch, s.token, s.head};
  };
  AttentionProblem out;
  out.batch = p.batch;
  out.q_len = p.q_len;
  out.k_len = p.k_len;
  out.n_head = p.n_head;
  out.n_kv_head = p.n_kv_head;
  out.head_dim = p.head_dim;
  out.scale = p.scale;
  out.causal = p.mask == HEDDLE_MASK_CAUSAL;
  out.window_left = p.window_left;
  out.q_pos0 = p.q_pos0;
  out.k_pos0 = p.k_pos0;
  out.q = strides(p.q);
  out.k = strides(p.k);
  out.v = strides(p.v);
  out.out = strides(p.out);
  out.dout = strides(p.dout);
  out.dq = strides(p.dq);
  out.dk = strides(p.dk);
  out.dv = strides(p.dv);
  out.lse_stride_batch = p.lse_stride_batch;
  out.lse_stride_head = p.lse_stride_head;
  return out;
}

Launch plan(const Machine& machine, uint32_t op, const AttentionProblem& problem) {
  if (op == HEDDLE_OP_BACKWARD) return machine.kernels->plan_backward(problem);
  if (op == HEDDLE_OP_DECODE) return machine.kernels->plan_decode(problem);
  return machine.kernels->plan_forward(problem);
}

uint64_t workspace_bytes(const Launch& launch, uint32_t workers) {
  constexpr auto kAlign = static_cast<uint64_t>(kernels::cpu::kWorkspaceAlign);
  const auto aligned = [](uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
  return aligned(launch.shared_bytes) + workers * aligned(launch.worker_bytes);
}

uint32_t useful_workers(const Machine& machine, const Launch& launch) {
  const int64_t tasks = kernels::max_i64(launch.tasks[0], launch.tasks[1]);
  return static_cast<uint32_t>(kernels::clamp_i64(tasks, 1, machine.workers));
}

uint32_t workers_that_fit(const Launch& launch, uint64_t bytes, uint32_t wanted) {
  while (wanted > 0 && workspace_bytes(launch, wanted) > bytes) --wanted;
  return wanted;
}

void answer(const Machine& machine, const heddle_attention_problem& problem,
            heddle_attention_verdict* verdict) {
  Reasons reasons(verdict);
  verdict->supported = 0;
  verdict->workspace_bytes = 0;
  verdict->workspace_align = kernels::cpu::kWorkspaceAlign;
  verdict->est_time_us = 0.0;
  verdict->kernel[0] = '\0';
  check_kind(problem, reasons);
  check_shape(problem, reasons);
  if (!reasons.none()) return;

  const AttentionProblem translated = translate(problem);
  const Launch launch = plan(machine, problem.op, translated);
  uint32_t workers = useful_workers(machine, launch);
  if (problem.max_workspace) {
    workers = workers_that_fit(launch, problem.max_workspace, workers);
    if (workers == 0) {
      char want[32];
      std::snprintf(want, sizeof(want), ">=%" PRIu64, workspace_bytes(launch, 1));
      reasons.add(HEDDLE_REASON_WORKSPACE, "max_workspace",
                  static_cast<int64_t>(problem.max_workspace), want, "allow a larger workspace");
      return;
    }
  }
  verdict->supported = 1;
  verdict->workspace_bytes = workspace_bytes(launch, workers);
  verdict->est_time_us = 1e6 * estimate_seconds(machine, problem.op, translated, launch);
  constexpr const char* kOps[] = {"forward", "backward", "decode"};
  std::snprintf(verdict->kernel, sizeof(verdict->kernel), "flash_%s_f32_%s",
                kOps[problem.op - HEDDLE_OP_FORWARD], machine.kernels->isa);
}

void write_text(heddle_text* text, const char* format, ...) {
  if (!text) return;
  std::va_list args;
  va_start(args, format);
  const int length = std::vsnprintf(text->cap ? text->buf : nullptr, text->cap, format, args);
  va_end(args);
  text->len = length > 0 ? static_cast<uint32_t>(length) : 0;
}

}  // namespace heddle::cpu_sdpa
