// cuda_flash: flash attention on CUDA behind the attention plugin ABI. What runs, and for which
// problems, is the table of kernels/cuda/attention/variants.cu.
#include <heddle/heddle_attention.hpp>

#include <algorithm>

#include "kernels/cuda/attention/attention.h"

namespace {

using heddle::attention::Answer;
using heddle::attention::Call;
using heddle::attention::Failure;
using heddle::attention::Host;
using heddle::attention::Problem;
using namespace heddle::kernels::cuda;

constexpr int64_t kMostLength = int64_t{1} << 30;  // keeps offsets within a tile in 32 bits
constexpr int64_t kMostBlocks = 2147483647;        // of a launch

const char* const kAlignmentHint = "let tensors and their rows begin at multiples of 16 bytes";

TensorStrides strides_of(const heddle_strides& s) {
  return {s.batch, s.token, s.head};
}

// What all addresses of rows are multiples of, in bytes, at most 16.
int64_t row_alignment(const Problem& p) {
  int64_t bytes = std::min<int64_t>(p->align_bytes, 16);
  const int64_t size = p->dtype == HEDDLE_DTYPE_F32 ? 4 : 2;
  const heddle_strides* tensors[] = {&p->q,    &p->k,  &p->v,  &p->out,
                                     &p->dout, &p->dq, &p->dk, &p->dv};
  const int count = p->op == HEDDLE_OP_BACKWARD ? 8 : 4;
  for (int n = 0; n < count; ++n) {
    for (const int64_t stride : {tensors[n]->batch, tensors[n]->token, tensors[n]->head}) {
      while (bytes > 1 && stride * size % bytes != 0) bytes /= 2;
    }
  }
  return bytes;
}

class CudaFlash {
 public:
  CudaFlash(Host, const heddle_device& device) : arch_(static_cast<int>(device.arch)) {
    int sms = 0, shared = 0;
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device.index), "device");
    check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index),
          "device");
    if (arch_ < 80)
      throw Failure(HEDDLE_REFUSED, "the GPU is sm_%d, expected sm_80 or newer", arch_);
    sms_ = sms;
    shared_limit_ = static_cast<size_t>(shared);
    peak_flops_ = device.peak_flops;
  }

  void query(const Problem& p, Answer& answer) const {
    const AttentionProblem problem = translate(p);
    require_lengths(p, answer);
    if (!answer.accepted()) return;
    const Variant* variant = choose(problem);
    if (!variant) return refuse(p, problem, answer);
    answer.require(grid_blocks(*variant, problem) <= kMostBlocks, HEDDLE_REASON_LENGTH, "batch",
                   p->batch, "fewer tiles than 2^31", "lower the batch size");
    if (!answer.accepted()) return;
    answer.kernel(variant->name);
    answer.workspace(variant->workspace_bytes(problem), p, 256);
    answer.estimate_us(estimate_us(p, problem));
  }

  void forward(const Call& call) const { run(call); }
  void backward(const Call& call) const { run(call); }
  void decode(const Call& call) const { run(call); }

 private:
  static void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();  // the error is reported here, not to whoever asks next
    throw Failure(HEDDLE_DEVICE_ERROR, "%s: %s", what, cudaGetErrorString(error));
  }

  static void require_lengths(const Problem& p, Answer& answer) {
    const auto below = [&](int64_t n, const char* field) {
      answer.require(n < kMostLength, HEDDLE_REASON_LENGTH, field, n, "in[0,2^30)",
                     "heads of a group count with q_len, kv heads with batch");
    };
    below(std::min(p->q_len, kMostLength) * p.group(), "q_len");
    below(p->k_len, "k_len");
    below(std::min(p->batch, kMostLength) * p->n_kv_head, "batch");
  }

  AttentionProblem translate(const Problem& p) const {
    AttentionProblem problem;
    problem.op = p->op == HEDDLE_OP_FORWARD    ? Operation::kForward
                 : p->op == HEDDLE_OP_BACKWARD ? Operation::kBackward
                                               : Operation::kDecode;
    problem.element = p->dtype == HEDDLE_DTYPE_F32   ? Element::kF32
                      : p->dtype == HEDDLE_DTYPE_F16 ? Element::kF16
                                                     : Element::kBf16;
    problem.deterministic = (p->flags & HEDDLE_FLAG_DETERMINISTIC) != 0;
    problem.batch = p->batch;
    problem.n_head = p->n_head, problem.n_kv_head = p->n_kv_head, problem.head_dim = p->head_dim;
    problem.scale = p->scale;
    // A window wider than any distance is none; positions plus windows then stay in 64 bits.
    const int64_t window = p->window_left > (int64_t{1} << 61) ? -1 : p->window_left;
    problem.mask = {p->q_len, p->k_len, p->q_pos0, p->k_pos0, window, p.causal()};
    problem.q = strides_of(p->q), problem.k = strides_of(p->k), problem.v = strides_of(p->v);
    problem.out = strides_of(p->out), problem.dout = strides_of(p->dout);
    problem.dq = strides_of(p->dq), problem.dk = strides_of(p->dk), problem.dv = strides_of(p->dv);
    problem.lse_batch = p->lse_stride_batch, problem.lse_head = p->lse_stride_head;
    problem.align_bytes = row_alignment(p);
    problem.arch = arch_, problem.sms = sms_, problem.shared_limit = shared_limit_;
    return problem;
  }

  // Names what the rows of this operation and data type want that the problem does not give.
  static void refuse(const Problem& p, const AttentionProblem& problem, Answer& answer) {
    int most = 0, multiple = 1, align = 1;
    bool arch_fits = false;
    for (const Variant& v : variants()) {
      if (v.op != problem.op || v.element != problem.element) continue;
      most = std::max(most, v.most_head_dim);
      multiple = v.head_dim_multiple;
      align = v.align_bytes;
      arch_fits |= problem.arch >= v.least_arch;
    }
    char want[32];
    std::snprintf(want, sizeof want, "<=%d", most);
    answer.require(p->head_dim <= most, HEDDLE_REASON_HEAD_DIM, "head_dim", p->head_dim, want,
                   "choose n_head so that n_embd / n_head is smaller");
    std::snprintf(want, sizeof want, "%%%d==0", multiple);
    answer.require(p->head_dim % multiple == 0, HEDDLE_REASON_HEAD_DIM, "head_dim", p->head_dim,
                   want, "choose n_head so that n_embd / n_head is a multiple of it");
    std::snprintf(want, sizeof want, ">=%d", align);
    answer.require(p->align_bytes >= static_cast<uint32_t>(align), HEDDLE_REASON_ALIGNMENT,
                   "align_bytes", p->align_bytes, want, kAlignmentHint);
    if (p->align_bytes >= static_cast<uint32_t>(align) && problem.align_bytes < align) {
      answer.refuse(HEDDLE_REASON_STRIDE, "strides", "no multiple of 16 bytes", "%16 bytes==0",
                    kAlignmentHint);
    }
    if (!arch_fits) {
      answer.refuse(HEDDLE_REASON_DEVICE, "device", "an older GPU", "sm_80 or newer");
    }
    if (answer.accepted()) {
      answer.refuse(HEDDLE_REASON_OTHER, "device", "too little shared memory per block",
                    "as on sm_80", "use a smaller head_dim");
    }
  }

  // Matrix products at half of the peak; 0 where the host does not know the peak.
  double estimate_us(const Problem& p, const AttentionProblem& problem) const {
    if (peak_flops_ <= 0.0) return 0.0;
    heddle::kernels::AttentionMask mask = problem.mask;
    if (p->op == HEDDLE_OP_DECODE) mask.q_pos0 = mask.k_len - mask.q_len;
    const double pairs =
        static_cast<double>(visible_pairs(mask)) * static_cast<double>(p->batch) * p->n_head;
    const double products =
        p->op == HEDDLE_OP_BACKWARD ? (problem.deterministic ? 14.0 : 10.0) : 4.0;
    return 1e6 * products * pairs * p->head_dim / (0.5 * peak_flops_);
  }

  void run(const Call& call) const {
    const Problem& p = call.problem;
    const AttentionProblem problem = translate(p);
    const Variant* variant = choose(problem);
    if (!variant) throw Failure(HEDDLE_UNSUPPORTED, "query() refuses this problem");
    const heddle_attention_call& c = call.raw();
    AttentionPointers at;
    at.q = c.q, at.k = c.k, at.v = c.v, at.out = c.out;
    at.lse = p->op == HEDDLE_OP_BACKWARD || p.wants_lse() ? c.lse : nullptr;
    at.dout = c.dout, at.dq = c.dq, at.dk = c.dk, at.dv = c.dv;
    at.kv_len = c.kv_len;
    at.workspace = call.workspace<char>(0, variant->workspace_bytes(problem)).data();
    check(variant->run(problem, at, static_cast<cudaStream_t>(call.stream())), variant->name);
  }

  int arch_, sms_ = 0;
  size_t shared_limit_ = 0;
  double peak_flops_ = 0.0;
};

}  // namespace

HEDDLE_ATTENTION_PLUGIN(
    CudaFlash, {.name = "cuda_flash",
                .version = "1.0.0",
                .description = "flash attention on tensor cores of sm_80, and in plain fp32",
                .properties = HEDDLE_PROP_CTX_CONCURRENT,
                .device_type = HEDDLE_DEVICE_CUDA});
