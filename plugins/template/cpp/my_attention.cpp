// my_attention: a Heddle attention backend in C++20 on heddle_attention.hpp. Slow and right;
// README.md walks to a fast one.
//
// Every row is computed by its definition with sums in double, which lie in the workspace. What the
// numbers mean is at the top of heddle_attention.h.
#include <algorithm>
#include <cmath>
#include <heddle/heddle_attention.hpp>
#include <limits>

namespace {

using heddle::attention::Answer;
using heddle::attention::Call;
using heddle::attention::Host;
using heddle::attention::Problem;
using heddle::attention::Range;

using Row = std::span<const float>;

double dot(Row a, Row b) {
  double sum = 0.0;
  for (size_t d = 0; d < a.size(); ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

void store(std::span<const double> sums, std::span<float> row) {
  std::transform(sums.begin(), sums.end(), row.begin(),
                 [](double x) { return static_cast<float>(x); });
}

class MyAttention {
 public:
  MyAttention(Host host, const heddle_device&) : host_(host) {}

  // Name every limit of the kernel here: a yes is a promise that the call will be right.
  void query(const Problem& p, Answer& answer) const {
    answer.require(p->dtype == HEDDLE_DTYPE_F32, HEDDLE_REASON_DTYPE, "dtype", p->dtype, "==1",
                   "run the CPU device in fp32");
    answer.require(p->head_dim <= kMaxHeadDim, HEDDLE_REASON_HEAD_DIM, "head_dim", p->head_dim,
                   "in[1,1024]", "choose model.n_head so that n_embd / n_head <= 1024");
    if (!answer.accepted()) return;
    answer.workspace(workspace_bytes(p), p);
    answer.estimate_us(estimate_us(p));
    answer.kernel(p->op == HEDDLE_OP_FORWARD    ? "forward_rows"
                  : p->op == HEDDLE_OP_BACKWARD ? "backward_rows"
                                                : "decode_rows");
  }

  void forward(const Call& call) const {
    const Problem& p = call.problem;
    for_each_query(call, [&](int64_t b, int64_t h, int64_t i, Sums sums) {
      attend(call, b, h, i, p.keys_of_query(i), sums);
    });
  }

  void decode(const Call& call) const {
    const Problem& p = call.problem;
    for_each_query(call, [&](int64_t b, int64_t h, int64_t i, Sums sums) {
      attend(call, b, h, i, p.keys_of_query(i, call.kv_len(b)), sums);
    });
  }

  void backward(const Call& call) const {
    for_each_query(call, [&](int64_t b, int64_t h, int64_t i, Sums sums) {
      gradient_of_query(call, b, h, i, sums);
    });
    // No two workers write the same row of dk or dv, so nothing is added atomically and the bits
    // are the same every time.
    const Problem& p = call.problem;
    const int64_t rows = p->batch * p->n_kv_head * p->k_len;
    const Areas area = sums_of_workers(call);
    host_.parallel_for(rows, 1, [&](int64_t begin, int64_t end, uint32_t worker) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t j = n % p->k_len, kv = n / p->k_len % p->n_kv_head;
        gradient_of_key(call, n / p->k_len / p->n_kv_head, kv, j, area(worker));
      }
    });
  }

 private:
  static constexpr int32_t kMaxHeadDim = 1024;
  using Sums = std::span<double>;  // 2 * head_dim, of one worker

  struct Weight {
    double weight, score_gradient;
  };

  // worker -> its part of the workspace.
  struct Areas {
    std::span<double> all;
    size_t size;
    Sums operator()(uint32_t worker) const { return all.subspan(worker * size, size); }
  };
  Areas sums_of_workers(const Call& call) const {
    const auto size = 2 * static_cast<size_t>(call.problem->head_dim);
    return {call.workspace<double>(0, size * host_.num_workers()), size};
  }

  uint64_t workspace_bytes(const Problem& p) const {
    return sizeof(double) * 2 * static_cast<uint64_t>(p->head_dim) * host_.num_workers();
  }

  // Read off `heddle plugin bench` on one core; what attention.backend: auto compares.
  static double estimate_us(const Problem& p) {
    auto keys = static_cast<double>(p->k_len);  // that a query sees on average
    if (p.causal() && p->op != HEDDLE_OP_DECODE) keys *= 0.5;
    const auto window = static_cast<double>(p->window_left);
    if (p->window_left >= 0 && window + 1.0 < keys) keys = window + 1.0;
    const double work = static_cast<double>(p->batch) * p->n_head * static_cast<double>(p->q_len) *
                        keys * p->head_dim;
    return 1.0 + work * (p->op == HEDDLE_OP_BACKWARD ? 5e-3 : 1.3e-3);
  }

  template <class Body>
  void for_each_query(const Call& call, Body&& body) const {
    const Problem& p = call.problem;
    const int64_t rows = p->batch * p->n_head * p->q_len;
    const Areas area = sums_of_workers(call);
    host_.parallel_for(rows, 1, [&](int64_t begin, int64_t end, uint32_t worker) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t i = n % p->q_len, h = n / p->q_len % p->n_head;
        body(n / p->q_len / p->n_head, h, i, area(worker));
      }
    });
  }

  // out and lse of query i: one pass over its keys. The sums are kept relative to the largest score
  // so far and scaled down when a larger one comes, so that exp() cannot overflow.
  static void attend(const Call& call, int64_t b, int64_t h, int64_t i, Range keys, Sums area) {
    const Problem& p = call.problem;
    const int64_t kv = p.kv_head(h);
    const Row q = call.q()(b, i, h);
    const Sums sums = area.first(q.size());
    std::fill(sums.begin(), sums.end(), 0.0);
    double sum = 0.0, top = -std::numeric_limits<double>::infinity();
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Row v = call.v()(b, j, kv);
      const double score = dot(q, call.k()(b, j, kv)) * p->scale;
      if (score > top) {
        const double shrink = std::exp(top - score);
        sum *= shrink;
        for (double& s : sums) s *= shrink;
        top = score;
      }
      const double weight = std::exp(score - top);
      sum += weight;
      for (size_t d = 0; d < sums.size(); ++d) sums[d] += weight * v[d];
    }
    if (!keys.empty()) {
      for (double& s : sums) s /= sum;
    }
    store(sums, call.out()(b, i, h));
    if (p.wants_lse()) call.lse(b, h, i) = static_cast<float>(top + std::log(sum));
  }

  // Both passes of backward need it. delta = out . dout = sum over keys of weight * (dout . v).
  static Weight weight_of(const Call& call, int64_t b, int64_t h, int64_t i, int64_t j) {
    const Problem& p = call.problem;
    const int64_t kv = p.kv_head(h);
    const Row dout = call.dout()(b, i, h);
    const double score = dot(call.q()(b, i, h), call.k()(b, j, kv)) * p->scale;
    const double weight = std::exp(score - call.lse(b, h, i));
    const double delta = dot(call.out()(b, i, h), dout);
    return {weight, weight * (dot(dout, call.v()(b, j, kv)) - delta) * p->scale};
  }

  static void gradient_of_query(const Call& call, int64_t b, int64_t h, int64_t i, Sums area) {
    const Problem& p = call.problem;
    const std::span<float> dq = call.dq()(b, i, h);
    const Sums sums = area.first(dq.size());
    std::fill(sums.begin(), sums.end(), 0.0);
    const Range keys = p.keys_of_query(i);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const Row k = call.k()(b, j, p.kv_head(h));
      const double ds = weight_of(call, b, h, i, j).score_gradient;
      for (size_t d = 0; d < sums.size(); ++d) sums[d] += ds * k[d];
    }
    store(sums, dq);
  }

  // Sums over all query heads of the group and all queries that see the key.
  static void gradient_of_key(const Call& call, int64_t b, int64_t kv, int64_t j, Sums area) {
    const Problem& p = call.problem;
    const auto dim = static_cast<size_t>(p->head_dim);
    const Sums dk = area.first(dim), dv = area.last(dim);
    std::fill(area.begin(), area.end(), 0.0);
    const Range queries = p.queries_of_key(j);
    for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
      for (int64_t i = queries.begin; i < queries.end; ++i) {
        const Weight w = weight_of(call, b, h, i, j);
        const Row q = call.q()(b, i, h), dout = call.dout()(b, i, h);
        for (size_t d = 0; d < dim; ++d) {
          dk[d] += w.score_gradient * q[d];
          dv[d] += w.weight * dout[d];
        }
      }
    }
    store(dk, call.dk()(b, j, kv));
    store(dv, call.dv()(b, j, kv));
  }

  Host host_;
};

}  // namespace

HEDDLE_ATTENTION_PLUGIN(MyAttention, {.name = "my_attention",
                                      .version = "0.1.0",
                                      .description = "attention by its definition, in C++",
                                      .properties = HEDDLE_PROP_CTX_CONCURRENT});
