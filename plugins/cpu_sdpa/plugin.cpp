// cpu_sdpa: fp32 flash attention on the CPU behind the attention plugin ABI.
#include <atomic>
#include <new>

#include "plugins/cpu_sdpa/problem.h"

using heddle::cpu_sdpa::Machine;
using heddle::cpu_sdpa::write_text;
using heddle::kernels::cpu::AttentionKernels;
using heddle::kernels::cpu::AttentionProblem;
using heddle::kernels::cpu::Isa;
using heddle::kernels::cpu::Launch;
using heddle::kernels::cpu::TaskContext;

struct heddle_attention_ctx {
  const heddle_host* host;
  Machine machine;
};

namespace {

// One call on its way through the host's workers. Every body takes tasks until none is left, so
// the heaviest-first order holds however the host cuts its ranges.
template <class Args>
struct Job {
  const AttentionProblem* problem;
  const Args* args;
  void (*run)(const AttentionProblem&, const Args&, const TaskContext&);
  char* shared;
  char* worker_areas;
  uint64_t area_bytes;
  int phase;
  int64_t tasks;
  std::atomic<int64_t> next;

  static void body(void* arg, int64_t begin, int64_t, uint32_t) {
    Job& job = *static_cast<Job*>(arg);
    // `begin` is unique among the ranges and below their number: it names the area.
    void* area = job.worker_areas + static_cast<uint64_t>(begin) * job.area_bytes;
    for (;;) {
      const int64_t task = job.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= job.tasks) return;
      job.run(*job.problem, *job.args, {job.phase, task, job.shared, area});
    }
  }
};

template <class Args>
void run_phases(const heddle_host* host, const Launch& launch, Job<Args>& job, uint32_t workers) {
  for (job.phase = 0; job.phase < launch.phases; ++job.phase) {
    job.tasks = launch.tasks[job.phase];
    if (job.tasks == 0) continue;
    job.next.store(0, std::memory_order_relaxed);
    const int64_t bodies = job.tasks < workers ? job.tasks : workers;
    host->parallel_for(host->user, bodies, 1, &Job<Args>::body, &job);
  }
}

// Checks what every call has in common and runs it.
template <class Args>
uint32_t execute(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                 const heddle_attention_call* call, uint32_t op, const Args& args,
                 void (*run)(const AttentionProblem&, const Args&, const TaskContext&)) {
  if (problem->op != op) {
    write_text(call->err, "op is %u, expected %u for this function", problem->op, op);
    return HEDDLE_INVALID_ARG;
  }
  heddle_attention_verdict verdict = {};
  heddle_attention_reason reason = {};
  verdict.struct_size = sizeof(verdict);
  verdict.reason_capacity = 1;
  verdict.reasons = &reason;
  heddle::cpu_sdpa::answer(ctx->machine, *problem, &verdict);
  if (!verdict.supported) {
    write_text(call->err, "%s: got %s, expected %s", reason.field, reason.got, reason.want);
    return HEDDLE_UNSUPPORTED;
  }
  const AttentionProblem translated = heddle::cpu_sdpa::translate(*problem);
  const Launch launch = heddle::cpu_sdpa::plan(ctx->machine, op, translated);
  const uint32_t workers = heddle::cpu_sdpa::workers_that_fit(
      launch, call->workspace_bytes, heddle::cpu_sdpa::useful_workers(ctx->machine, launch));
  const uint64_t one = heddle::cpu_sdpa::workspace_bytes(launch, 1);
  if (workers == 0 || (!call->workspace && one > 0)) {
    write_text(call->err, "workspace_bytes: got %llu, expected at least %llu",
               static_cast<unsigned long long>(call->workspace ? call->workspace_bytes : 0),
               static_cast<unsigned long long>(verdict.workspace_bytes));
    return HEDDLE_INVALID_ARG;
  }
  const uint64_t shared_bytes = heddle::cpu_sdpa::workspace_bytes(launch, 0);
  Job<Args> job{};
  job.problem = &translated;
  job.args = &args;
  job.run = run;
  job.shared = static_cast<char*>(call->workspace);
  job.worker_areas = job.shared + shared_bytes;
  job.area_bytes = one - shared_bytes;
  run_phases(ctx->host, launch, job, workers);
  return HEDDLE_OK;
}

bool sizes_ok(const heddle_attention_problem* problem, const heddle_attention_call* call) {
  return problem->struct_size >= sizeof(heddle_attention_problem) &&
         call->struct_size >= sizeof(heddle_attention_call);
}

// A tensor without elements may come without an address.
bool missing(const void* pointer, int64_t elements) {
  return !pointer && elements > 0;
}

uint32_t refuse_pointer(const heddle_attention_call* call, const char* names) {
  write_text(call->err, "got NULL, expected an address for each of %s", names);
  return HEDDLE_INVALID_ARG;
}

uint32_t create(const heddle_host* host, const heddle_device* device, heddle_attention_ctx** ctx,
                heddle_text* err) {
  if (device->type != HEDDLE_DEVICE_CPU) {
    write_text(err, "cpu_sdpa serves device type 1 (CPU), got %u", device->type);
    return HEDDLE_REFUSED;
  }
  const char* refused = nullptr;
  const Isa isa = heddle::kernels::cpu::select_isa(&refused);
  const AttentionKernels& kernels = heddle::kernels::cpu::attention_kernels(isa);
  if (refused) {
    heddle_text text{};
    char message[160];
    text.buf = message;
    text.cap = sizeof(message);
    write_text(&text, "HEDDLE_CPU_ISA=%s is not available here, using %s", refused, kernels.isa);
    host->log(host->user, 2, message);
  }
  auto* made = new (std::nothrow) heddle_attention_ctx;
  if (!made) {
    write_text(err, "out of memory for a context");
    return HEDDLE_OUT_OF_MEMORY;
  }
  const uint32_t workers = host->num_workers(host->user);
  made->host = host;
  made->machine.kernels = &kernels;
  made->machine.workers = workers > 0 ? workers : 1;
  made->machine.flops_per_second = device->peak_flops > 0.0
                                       ? device->peak_flops
                                       : made->machine.workers * kernels.measure_peak(0.002);
  *ctx = made;
  return HEDDLE_OK;
}

void destroy(heddle_attention_ctx* ctx) {
  delete ctx;
}

uint32_t query(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
               heddle_attention_verdict* verdict) {
  if (problem->struct_size < sizeof(heddle_attention_problem) ||
      verdict->struct_size < sizeof(heddle_attention_verdict)) {
    return HEDDLE_INVALID_ARG;
  }
  heddle::cpu_sdpa::answer(ctx->machine, *problem, verdict);
  return HEDDLE_OK;
}

uint32_t forward(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                 const heddle_attention_call* call) {
  if (!sizes_ok(problem, call)) return HEDDLE_INVALID_ARG;
  const int64_t queries = problem->batch * problem->q_len, keys = problem->batch * problem->k_len;
  const bool lse_wanted = problem->flags & HEDDLE_FLAG_LSE_OUT;
  if (missing(call->q, queries) || missing(call->out, queries) || missing(call->k, keys) ||
      missing(call->v, keys) || (lse_wanted && missing(call->lse, queries))) {
    return refuse_pointer(call, "q, k, v, out and, with LSE_OUT, lse");
  }
  heddle::kernels::cpu::ForwardArgs args;
  args.q = static_cast<const float*>(call->q);
  args.k = static_cast<const float*>(call->k);
  args.v = static_cast<const float*>(call->v);
  args.out = static_cast<float*>(call->out);
  args.lse = lse_wanted ? call->lse : nullptr;
  return execute(ctx, problem, call, HEDDLE_OP_FORWARD, args, ctx->machine.kernels->run_forward);
}

uint32_t backward(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                  const heddle_attention_call* call) {
  if (!sizes_ok(problem, call)) return HEDDLE_INVALID_ARG;
  const int64_t queries = problem->batch * problem->q_len, keys = problem->batch * problem->k_len;
  if (missing(call->q, queries) || missing(call->out, queries) || missing(call->dout, queries) ||
      missing(call->lse, queries) || missing(call->dq, queries) || missing(call->k, keys) ||
      missing(call->v, keys) || missing(call->dk, keys) || missing(call->dv, keys)) {
    return refuse_pointer(call, "q, k, v, out, lse, dout, dq, dk and dv");
  }
  heddle::kernels::cpu::BackwardArgs args;
  args.q = static_cast<const float*>(call->q);
  args.k = static_cast<const float*>(call->k);
  args.v = static_cast<const float*>(call->v);
  args.out = static_cast<const float*>(call->out);
  args.lse = call->lse;
  args.dout = static_cast<const float*>(call->dout);
  args.dq = static_cast<float*>(call->dq);
  args.dk = static_cast<float*>(call->dk);
  args.dv = static_cast<float*>(call->dv);
  return execute(ctx, problem, call, HEDDLE_OP_BACKWARD, args, ctx->machine.kernels->run_backward);
}

uint32_t decode(heddle_attention_ctx* ctx, const heddle_attention_problem* problem,
                const heddle_attention_call* call) {
  if (!sizes_ok(problem, call)) return HEDDLE_INVALID_ARG;
  const int64_t queries = problem->batch * problem->q_len, keys = problem->batch * problem->k_len;
  const bool lse_wanted = problem->flags & HEDDLE_FLAG_LSE_OUT;
  if (missing(call->q, queries) || missing(call->out, queries) || missing(call->k, keys) ||
      missing(call->v, keys) || missing(call->kv_len, problem->batch) ||
      (lse_wanted && missing(call->lse, queries))) {
    return refuse_pointer(call, "q, k, v, out, kv_len and, with LSE_OUT, lse");
  }
  for (int64_t b = 0; b < problem->batch; ++b) {
    if (call->kv_len[b] >= 0 && call->kv_len[b] <= problem->k_len) continue;
    write_text(call->err, "kv_len[%lld]: got %d, expected 0..%lld", static_cast<long long>(b),
               call->kv_len[b], static_cast<long long>(problem->k_len));
    return HEDDLE_INVALID_ARG;
  }
  heddle::kernels::cpu::DecodeArgs args;
  args.q = static_cast<const float*>(call->q);
  args.k = static_cast<const float*>(call->k);
  args.v = static_cast<const float*>(call->v);
  args.kv_len = call->kv_len;
  args.out = static_cast<float*>(call->out);
  args.lse = lse_wanted ? call->lse : nullptr;
  return execute(ctx, problem, call, HEDDLE_OP_DECODE, args, ctx->machine.kernels->run_decode);
}

const heddle_attention_plugin kPlugin = {
    sizeof(heddle_attention_plugin),
    HEDDLE_ATTENTION_MAGIC,
    HEDDLE_ATTENTION_ABI_MAJOR,
    HEDDLE_ATTENTION_ABI_MINOR,
    "cpu_sdpa",
    "1.0.0",
    "fp32 flash attention for x86-64, AVX-512, AVX2 or baseline chosen at run time",
    heddle::cpu_sdpa::kKnownFeatures,
    HEDDLE_DEVICE_CPU,
    HEDDLE_PROP_CTX_CONCURRENT,
    sizeof(heddle_attention_problem),
    sizeof(heddle_attention_call),
    create,
    destroy,
    query,
    forward,
    backward,
    decode,
};

}  // namespace

extern "C" HEDDLE_EXPORT const heddle_attention_plugin* heddle_attention_plugin_v1(
    const heddle_host* host, heddle_text* err) {
  if (!host || host->struct_size < sizeof(heddle_host)) {
    write_text(err, "the host's table is smaller than that of ABI 1.0");
    return nullptr;
  }
  return &kPlugin;
}
