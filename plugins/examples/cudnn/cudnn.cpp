// cudnn: cuDNN's fused attention as a Heddle backend, through the graphs of cudnn-frontend: what
// cuda_flash is measured beside.
//
// Where the two speak different languages:
//   (batch, head, token, dim)    strides say the same for any order
//   its left bound               counts the row's own key: window_left + 1
//   positions                    its diagonal begins top left or ends bottom right; any other is
//   refused rows that see nothing        are refused: their values are not promised cache lengths
//   no decode plans                        one per problem, made by the first query() that asks for
//   it (it may
//                                compile) and kept; a call looks it up
//   its own host memory          ALLOCATES
#include <cuda_runtime.h>
#include <cudnn_frontend.h>

#include <heddle/heddle_attention.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

namespace fe = cudnn_frontend;
using heddle::attention::Answer;
using heddle::attention::Call;
using heddle::attention::Failure;
using heddle::attention::Host;
using heddle::attention::Problem;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Name : int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

constexpr int64_t kMostLength = int64_t{1} << 30;

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Failure(HEDDLE_DEVICE_ERROR, "%s: %s", what, cudnnGetErrorString(status));
}

// Key of query row 0 at its own position; the mask in terms of rows and columns.
int64_t shift_of(const Problem& p) {
  return p->q_pos0 - p->k_pos0;
}
// The window, or -1 where it cuts nothing.
int64_t window_of(const Problem& p) {
  return p->window_left >= shift_of(p) + p->q_len - 1 ? -1 : p->window_left;
}

struct Handle {
  Handle() { check(cudnnCreate(&cudnn), "starting cuDNN"); }
  ~Handle() { (void)cudnnDestroy(cudnn); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t cudnn = nullptr;
};

// The graph of one problem, or why cuDNN has none.
struct Plan {
  std::shared_ptr<Graph> graph;
  int64_t workspace = 0;
  std::string refusal;
};

class Builder {
 public:
  explicit Builder(const Problem& p) : p_(p), graph_(std::make_shared<Graph>()) {
    const auto type =
        p->dtype == HEDDLE_DTYPE_BF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    graph_->set_io_data_type(type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Plan build(cudnnHandle_t handle) {
    p_->op == HEDDLE_OP_BACKWARD ? add_backward() : add_forward();
    Plan plan;
    fe::error_t error = graph_->build(handle, {fe::HeurMode_t::A});
    if (error.is_bad()) {
      plan.refusal = error.get_message();
    } else if (graph_->get_workspace_size(plan.workspace).is_bad()) {
      plan.refusal = "it does not say how much workspace it needs";
    } else {
      plan.graph = graph_;
    }
    return plan;
  }

 private:
  Tensor input(Name name, int64_t heads, int64_t tokens, const heddle_strides& s) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(name)
                              .set_dim({p_->batch, heads, tokens, p_->head_dim})
                              .set_stride({s.batch, s.head, s.token, 1}));
  }
  void output(const Tensor& tensor, Name name, int64_t heads, int64_t tokens,
              const heddle_strides& s) {
    tensor->set_output(true)
        .set_uid(name)
        .set_dim({p_->batch, heads, tokens, p_->head_dim})
        .set_stride({s.batch, s.head, s.token, 1});
  }
  template <class Attributes>
  void set_mask(Attributes& attributes) const {
    attributes.set_attn_scale(p_->scale);
    if (!p_.causal()) return;
    attributes.set_diagonal_alignment(shift_of(p_) == 0 ? fe::DiagonalAlignment_t::TOP_LEFT
                                                        : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    attributes.set_diagonal_band_right_bound(0);
    if (window_of(p_) >= 0) {
      attributes.set_diagonal_band_left_bound(static_cast<int>(window_of(p_)) + 1);
    }
  }
  std::vector<int64_t> stats_dim() const { return {p_->batch, p_->n_head, p_->q_len, 1}; }
  std::vector<int64_t> stats_stride() const {
    return {p_->lse_stride_batch, p_->lse_stride_head, 1, 1};
  }

  void add_forward() {
    fe::graph::SDPA_attributes attributes;
    attributes.set_name("forward").set_generate_stats(p_.wants_lse());
    set_mask(attributes);
    const auto [out, stats] = graph_->sdpa(input(kQ, p_->n_head, p_->q_len, p_->q),
                                           input(kK, p_->n_kv_head, p_->k_len, p_->k),
                                           input(kV, p_->n_kv_head, p_->k_len, p_->v), attributes);
    output(out, kOut, p_->n_head, p_->q_len, p_->out);
    if (!p_.wants_lse()) return;
    stats->set_output(true)
        .set_uid(kStats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim(stats_dim())
        .set_stride(stats_stride());
  }

  void add_backward() {
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_name("backward")
        .set_deterministic_algorithm((p_->flags & HEDDLE_FLAG_DETERMINISTIC) != 0);
    set_mask(attributes);
    const Tensor stats = graph_->tensor(fe::graph::Tensor_attributes()
                                            .set_uid(kStats)
                                            .set_data_type(fe::DataType_t::FLOAT)
                                            .set_dim(stats_dim())
                                            .set_stride(stats_stride()));
    const auto [dq, dk, dv] = graph_->sdpa_backward(
        input(kQ, p_->n_head, p_->q_len, p_->q), input(kK, p_->n_kv_head, p_->k_len, p_->k),
        input(kV, p_->n_kv_head, p_->k_len, p_->v), input(kOut, p_->n_head, p_->q_len, p_->out),
        input(kDout, p_->n_head, p_->q_len, p_->dout), stats, attributes);
    output(dq, kDq, p_->n_head, p_->q_len, p_->dq);
    output(dk, kDk, p_->n_kv_head, p_->k_len, p_->dk);
    output(dv, kDv, p_->n_kv_head, p_->k_len, p_->dv);
  }

  const Problem& p_;
  std::shared_ptr<Graph> graph_;
};

class Cudnn {
 public:
  Cudnn(Host, const heddle_device& device) : device_(device.index) {
    if (cudaSetDevice(device_) != cudaSuccess) {
      throw Failure(HEDDLE_DEVICE_ERROR, "device %d: %s", device_,
                    cudaGetErrorString(cudaGetLastError()));
    }
    if (device.arch < 80) {
      throw Failure(HEDDLE_REFUSED, "the GPU is sm_%u, expected sm_80 or newer", device.arch);
    }
    for_queries_ = std::make_unique<Handle>();
    for_calls_ = std::make_unique<Handle>();
  }

  void query(const Problem& p, Answer& answer) const {
    require_shape(p, answer);
    require_mask(p, answer);
    if (!answer.accepted()) return;
    const Plan& plan = plan_of(p);
    if (!plan.graph) {
      answer.refuse(HEDDLE_REASON_OTHER, "problem", "no plan of this cuDNN",
                    "a problem that it supports", plan.refusal);
      return;
    }
    answer.kernel("cudnn_" + std::to_string(cudnnGetVersion()) +
                  (p->op == HEDDLE_OP_BACKWARD ? "_backward" : "_forward"));
    answer.workspace(static_cast<uint64_t>(plan.workspace), p, 256);
  }

  void forward(const Call& call) const { run(call); }
  void backward(const Call& call) const { run(call); }

 private:
  static void require_shape(const Problem& p, Answer& answer) {
    answer.require(p->dtype != HEDDLE_DTYPE_F32, HEDDLE_REASON_DTYPE, "dtype", p->dtype, "in{2,3}",
                   "set device.precision: bf16");
    answer.require(p->head_dim % 8 == 0, HEDDLE_REASON_HEAD_DIM, "head_dim", p->head_dim, "%8==0",
                   "choose n_head so that n_embd / n_head is a multiple of it");
    answer.require(p->align_bytes >= 16, HEDDLE_REASON_ALIGNMENT, "align_bytes", p->align_bytes,
                   ">=16", "let tensors begin at multiples of 16 bytes");
    const auto length = [&](int64_t n, const char* field) {
      answer.require(n >= 1 && n < kMostLength, HEDDLE_REASON_LENGTH, field, n, "in[1,2^30)");
    };
    length(p->batch, "batch");
    length(p->q_len, "q_len");
    length(p->k_len, "k_len");
    bool aligned = true;
    for (const heddle_strides* s :
         {&p->q, &p->k, &p->v, &p->out, &p->dout, &p->dq, &p->dk, &p->dv}) {
      aligned = aligned && s->batch % 8 == 0 && s->token % 8 == 0 && s->head % 8 == 0;
    }
    if (!aligned) {
      answer.refuse(HEDDLE_REASON_STRIDE, "strides", "no multiple of 8 elements", "%8 elements==0",
                    "let rows begin at multiples of 16 bytes");
    }
  }

  static void require_mask(const Problem& p, Answer& answer) {
    if (!answer.accepted()) return;
    const int64_t shift = shift_of(p), last = shift + p->q_len - 1;
    if (!p.causal()) {
      answer.require(p->window_left < 0, HEDDLE_REASON_WINDOW, "window_left", p->window_left,
                     "==-1", "its window needs a causal mask");
      return;
    }
    answer.require(shift == 0 || shift == p->k_len - p->q_len, HEDDLE_REASON_POSITION, "q_pos0",
                   p->q_pos0, "k_pos0 or the end of the keys",
                   "its diagonal begins top left or ends bottom right");
    answer.require(shift >= 0, HEDDLE_REASON_LENGTH, "q_len", p->q_len,
                   "<=" + std::to_string(p->k_len),
                   "rows that see no key have no defined result there");
    const bool sees = window_of(p) < 0 || last - p->window_left < p->k_len;
    answer.require(sees, HEDDLE_REASON_WINDOW, "window_left", p->window_left,
                   ">=" + std::to_string(last - p->k_len + 1),
                   "rows that see no key have no defined result there");
  }

  // Made once; references stay good.
  const Plan& plan_of(const Problem& p) const {
    heddle_attention_problem key = *p;
    key.required_features = 0, key.max_workspace = 0, key.align_bytes = 0;
    const std::string bytes(reinterpret_cast<const char*>(&key), sizeof key);
    const std::lock_guard lock(mutex_);
    const auto it = plans_.find(bytes);
    if (it != plans_.end()) return it->second;
    (void)cudaSetDevice(device_);
    return plans_.emplace(bytes, Builder(p).build(for_queries_->cudnn)).first->second;
  }

  void run(const Call& call) const {
    const Plan& plan = plan_of(call.problem);
    if (!plan.graph) throw Failure(HEDDLE_UNSUPPORTED, "query() refuses this problem");
    const heddle_attention_call& c = call.raw();
    std::unordered_map<int64_t, void*> at = {{kQ, const_cast<void*>(c.q)},
                                             {kK, const_cast<void*>(c.k)},
                                             {kV, const_cast<void*>(c.v)},
                                             {kOut, c.out}};
    const bool backward = call.problem->op == HEDDLE_OP_BACKWARD;
    if (backward || call.problem.wants_lse()) at[kStats] = c.lse;
    if (backward) {
      at[kDout] = const_cast<void*>(c.dout);
      at[kDq] = c.dq, at[kDk] = c.dk, at[kDv] = c.dv;
    }
    check(cudnnSetStream(for_calls_->cudnn, static_cast<cudaStream_t>(call.stream())), "cuDNN");
    void* workspace = call.workspace<char>(0, static_cast<uint64_t>(plan.workspace)).data();
    fe::error_t error = plan.graph->execute(for_calls_->cudnn, at, workspace);
    if (error.is_good()) return;
    throw Failure(HEDDLE_DEVICE_ERROR, "cuDNN: %s", error.get_message().c_str());
  }

  int device_;
  std::unique_ptr<Handle> for_queries_, for_calls_;
  mutable std::mutex mutex_;  // of the plans and of for_queries_
  mutable std::map<std::string, Plan> plans_;
};

}  // namespace

HEDDLE_ATTENTION_PLUGIN(Cudnn, {.name = "cudnn",
                                .version = "1.0.0",
                                .description = "cuDNN's fused attention, bf16 and fp16",
                                .properties = HEDDLE_PROP_ALLOCATES,
                                .device_type = HEDDLE_DEVICE_CUDA});
