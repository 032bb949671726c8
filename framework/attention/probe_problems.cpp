#include "framework/attention/probe_problems.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "framework/attention/attention.h"
#include "framework/attention/fp_control.h"
#include "framework/attention/names.h"
#include "framework/attention/probe_compare.h"
#include "framework/core/error.h"
#include "framework/core/rng.h"

namespace heddle {
namespace {

namespace ref = kernels::reference;

constexpr int64_t kBatch = 2;
constexpr int64_t kRowGap = 8;  // elements between rows that belong to nobody
constexpr size_t kCanary = 64;  // bytes behind the workspace
constexpr unsigned char kPoison = 0xff;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- one problem's memory -----------------------------------------------------------------------

// q, k, v (or their gradients) in one block: slices of projected rows with a gap behind each row,
// or three contiguous tensors one after the other.
struct Triple {
  std::vector<float> storage;
  int64_t offset[3] = {0, 0, 0};

  float* at(int i) { return storage.data() + offset[i]; }
};

// The dimensions that the plugin did not refuse.
struct Shape {
  AttentionLayerKind kind;
  int64_t len = 0;
  bool sliced = false;
};

Triple make_triple(const Shape& s, float fill) {
  const int64_t q = s.kind.n_head * s.kind.head_dim, k = s.kind.n_kv_head * s.kind.head_dim;
  const int64_t rows = kBatch * s.len;
  Triple t;
  if (s.sliced) {
    t.storage.assign(static_cast<size_t>(rows * (q + 2 * k + kRowGap)), fill);
    t.offset[1] = q;
    t.offset[2] = q + k;
  } else {
    t.storage.assign(static_cast<size_t>(rows * (q + 2 * k)), fill);
    t.offset[1] = rows * q;
    t.offset[2] = rows * (q + k);
  }
  return t;
}

AttentionLayout make_layout(const Shape& s) {
  const int64_t q = s.kind.n_head * s.kind.head_dim, k = s.kind.n_kv_head * s.kind.head_dim;
  AttentionLayout l;
  l.q_row = l.dq_row = s.sliced ? q + 2 * k + kRowGap : q;
  l.k_row = l.v_row = l.dk_row = l.dv_row = s.sliced ? l.q_row : k;
  l.out_row = l.dout_row = s.sliced ? q + kRowGap : q;
  return l;
}

void randomise(std::vector<float>& values, std::string_view stream) {
  Rng rng(7, stream);
  for (float& v : values) v = 1.2f * rng.normal();
}

template <class T>
ref::View<T> view(T* data, const heddle_strides& s) {
  return {data, {s.batch, s.token, s.head}};
}

ref::AttentionShape reference_shape(const heddle_attention_problem& p) {
  ref::AttentionShape s;
  s.batch = p.batch;
  s.q_len = p.q_len;
  s.k_len = p.k_len;
  s.n_head = p.n_head;
  s.n_kv_head = p.n_kv_head;
  s.head_dim = p.head_dim;
  s.scale = p.scale;
  s.causal = p.mask == HEDDLE_MASK_CAUSAL;
  s.window_left = p.window_left;
  return s;
}

// Elements between rows must come back as they were.
void check_gaps(const heddle_attention_problem& p, const char* name, const float* data,
                int64_t rows, int64_t stride, int64_t used) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = used; i < stride; ++i) {
      if (std::bit_cast<uint32_t>(data[r * stride + i]) == std::bit_cast<uint32_t>(kNaN)) continue;
      throw plugin_error(fmt::format("writes outside its outputs: {}: the gap behind row {} of {}",
                                     problem_text(p), r % p.q_len, name),
                         "address rows by the strides of the problem");
    }
  }
}

// ---- calling ------------------------------------------------------------------------------------

class Caller {
 public:
  Caller(const PluginContext& context, const PluginStage& stage)
      : context_(context), stage_(stage) {}

  // One call with a poisoned workspace, and everything checked but the numbers.
  void run(const heddle_attention_problem& p, const QueryAnswer& answer,
           heddle_attention_call call) const {
    std::vector<unsigned char> workspace(answer.workspace_bytes + answer.workspace_align + kCanary,
                                         kPoison);
    const auto base = reinterpret_cast<uintptr_t>(workspace.data());
    const uintptr_t start = (base + answer.workspace_align - 1) & ~(answer.workspace_align - 1);
    std::array<char, 256> bytes{};
    heddle_text err{bytes.data(), static_cast<uint32_t>(bytes.size()), 0};
    call.struct_size = sizeof call;
    call.workspace = answer.workspace_bytes > 0 ? reinterpret_cast<void*>(start) : nullptr;
    call.workspace_bytes = answer.workspace_bytes;
    call.err = &err;

    if (stage_) stage_(problem_text(p));
    const FpControlGuard mode;
    const uint32_t status = context_.run(p, call);
    mode.check("running " + problem_text(p));
    if (status != HEDDLE_OK) {
      const std::string text =
          clean_text(std::string_view(bytes.data(), strnlen(bytes.data(), 256)));
      throw plugin_error(
          fmt::format("broke its promise: query said yes, but {} returned {}{}{}", problem_text(p),
                      status_name(status), text.empty() ? "" : ": ", text),
          "correct query() or the kernel");
    }
    const unsigned char* end = reinterpret_cast<unsigned char*>(start) + answer.workspace_bytes;
    for (size_t i = 0; i < kCanary && end + i < workspace.data() + workspace.size(); ++i) {
      if (end[i] == kPoison) continue;
      throw plugin_error(fmt::format("writes beyond its workspace of {} bytes: {}",
                                     answer.workspace_bytes, problem_text(p)),
                         "ask for what the kernel needs in query()");
    }
  }

 private:
  const PluginContext& context_;
  const PluginStage& stage_;
};

void run_forward(const Caller& caller, const Shape& s, const heddle_attention_problem& p,
                 const QueryAnswer& answer) {
  Triple in = make_triple(s, 0.0f);
  randomise(in.storage, "forward");
  std::vector<float> out(static_cast<size_t>(kBatch * p.out.batch), kNaN), want = out;
  std::vector<float> lse(static_cast<size_t>(p.batch * p.lse_stride_batch), kNaN);
  std::vector<double> want_lse(lse.size());

  heddle_attention_call call{};
  call.q = in.at(0);
  call.k = in.at(1);
  call.v = in.at(2);
  call.out = out.data();
  call.lse = lse.data();
  caller.run(p, answer, call);

  ref::attention_forward<float, double, double>(
      reference_shape(p), view<const float>(in.at(0), p.q), view<const float>(in.at(1), p.k),
      view<const float>(in.at(2), p.v), view(want.data(), p.out), want_lse.data());
  compare_tensor(p, "out", {p.batch, p.q_len, p.n_head, p.head_dim},
                 view<const float>(out.data(), p.out), view<const float>(want.data(), p.out),
                 kForwardGate);
  if (p.flags & HEDDLE_FLAG_LSE_OUT) compare_lse(p, lse.data(), want_lse.data());
  check_gaps(p, "out", out.data(), kBatch * p.q_len, p.out.token, p.n_head * p.head_dim);
}

void compare_gradients(const heddle_attention_problem& p, Triple& got, Triple& want) {
  const heddle_strides strides[3] = {p.dq, p.dk, p.dv};
  const char* names[3] = {"dq", "dk", "dv"};
  for (int i = 0; i < 3; ++i) {
    const TensorShape shape{p.batch, i == 0 ? p.q_len : p.k_len, i == 0 ? p.n_head : p.n_kv_head,
                            p.head_dim};
    compare_tensor(p, names[i], shape, view<const float>(got.at(i), strides[i]),
                   view<const float>(want.at(i), strides[i]), kBackwardGate);
  }
}

void run_backward(const Caller& caller, const Shape& s, const heddle_attention_problem& p,
                  const QueryAnswer& answer) {
  Triple in = make_triple(s, 0.0f), grads = make_triple(s, kNaN), want = make_triple(s, kNaN);
  randomise(in.storage, "backward");
  std::vector<float> out(static_cast<size_t>(kBatch * p.out.batch)), dout(out.size());
  randomise(dout, "dout");
  std::vector<float> lse(static_cast<size_t>(p.batch * p.lse_stride_batch));
  const ref::AttentionShape shape = reference_shape(p);
  const auto q = view<const float>(in.at(0), p.q), k = view<const float>(in.at(1), p.k),
             v = view<const float>(in.at(2), p.v);
  ref::attention_forward<float>(shape, q, k, v, view(out.data(), p.out), lse.data());

  heddle_attention_call call{};
  call.q = in.at(0);
  call.k = in.at(1);
  call.v = in.at(2);
  call.out = out.data();
  call.lse = lse.data();
  call.dout = dout.data();
  call.dq = grads.at(0);
  call.dk = grads.at(1);
  call.dv = grads.at(2);
  caller.run(p, answer, call);

  ref::attention_backward<float>(shape, q, k, v, view<const float>(dout.data(), p.dout),
                                 view(want.at(0), p.dq), view(want.at(1), p.dk),
                                 view(want.at(2), p.dv));
  compare_gradients(p, grads, want);
  if (s.sliced) {
    check_gaps(p, "dq, dk, dv", grads.storage.data(), kBatch * p.q_len, p.dq.token,
               p.dq.token - kRowGap);
  }
}

void run_decode(const Caller& caller, const heddle_attention_problem& p,
                const QueryAnswer& answer) {
  const std::array<int32_t, kBatch> kv_len = {static_cast<int32_t>(p.k_len - 14), 9};
  std::vector<float> q(static_cast<size_t>(kBatch * p.q.batch)),
      k(static_cast<size_t>(kBatch * p.k.batch)), v(k.size());
  randomise(q, "decode q");
  randomise(k, "decode k");
  randomise(v, "decode v");
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = kv_len[static_cast<size_t>(b)] * p.k.token; i < p.k.batch; ++i) {
      k[static_cast<size_t>(b * p.k.batch + i)] = kNaN;
      v[static_cast<size_t>(b * p.k.batch + i)] = kNaN;
    }
  }
  std::vector<float> out(static_cast<size_t>(kBatch * p.out.batch), kNaN), want = out;

  heddle_attention_call call{};
  call.q = q.data();
  call.k = k.data();
  call.v = v.data();
  call.out = out.data();
  call.kv_len = kv_len.data();
  caller.run(p, answer, call);

  ref::attention_decode<float>(reference_shape(p), view<const float>(q.data(), p.q),
                               view<const float>(k.data(), p.k), view<const float>(v.data(), p.v),
                               kv_len.data(), view(want.data(), p.out),
                               static_cast<double*>(nullptr));
  compare_tensor(p, "out", {p.batch, p.q_len, p.n_head, p.head_dim},
                 view<const float>(out.data(), p.out), view<const float>(want.data(), p.out),
                 kForwardGate);
  check_gaps(p, "out", out.data(), kBatch * p.q_len, p.out.token, p.n_head * p.head_dim);
}

// ---- which problems -----------------------------------------------------------------------------

struct Accepted {
  Shape shape;
  heddle_attention_problem problem{};
  QueryAnswer answer;
};

// What a probe wants to see, the most telling first.
struct Want {
  const char* name;
  int64_t n_kv_head;  // of 4 heads
  int64_t window_left;
};
constexpr std::array<Want, 4> kWants = {Want{"a window and grouped heads", 2, 5},
                                        Want{"a window", 4, 5}, Want{"grouped heads", 2, -1},
                                        Want{"neither a window nor grouped heads", 4, -1}};

heddle_attention_problem make_problem(const PluginContext& context, const Shape& s, uint32_t op,
                                      int64_t q_len) {
  const bool lse = op == HEDDLE_OP_FORWARD && !context.has(HEDDLE_PROP_NO_LSE);
  return make_attention_problem(s.kind, op, kBatch, q_len, s.len, make_layout(s), lse);
}

// The first of a ladder of sizes and layouts that the plugin accepts: it may serve only some head
// dimensions, lengths or contiguous rows. `refusal` gets the answer to the first.
std::optional<Accepted> find_accepted(const PluginContext& context, const Want& want, uint32_t op,
                                      int64_t decode_q_len, std::string& refusal) {
  for (const bool sliced : {true, false}) {
    for (const int64_t head_dim : {16, 64, 128, 32, 256}) {
      for (const int64_t len : {37, 128}) {
        Accepted a;
        a.shape = {{4, want.n_kv_head, head_dim, want.window_left}, len, sliced};
        a.problem = make_problem(context, a.shape, op, op == HEDDLE_OP_DECODE ? decode_q_len : len);
        a.answer = context.query_preferring_determinism(a.problem);
        if (a.answer.supported) return a;
        if (refusal.empty()) refusal = a.answer.refusal;
      }
    }
  }
  return std::nullopt;
}

void run_one(const Caller& caller, const Accepted& a) {
  switch (a.problem.op) {
    case HEDDLE_OP_FORWARD:
      return run_forward(caller, a.shape, a.problem, a.answer);
    case HEDDLE_OP_BACKWARD:
      return run_backward(caller, a.shape, a.problem, a.answer);
    case HEDDLE_OP_DECODE:
      return run_decode(caller, a.problem, a.answer);
  }
}

// One operation over all that a probe wants to see.
void probe_operation(const PluginContext& context, const Caller& caller, uint32_t op,
                     int64_t decode_q_len, PluginReport& report, std::string& first_refusal) {
  const std::string name = op_name(op) + (decode_q_len > 1 ? " of several tokens" : "");
  std::vector<std::string> notes;
  for (const Want& want : kWants) {
    std::string refusal;
    const auto accepted = find_accepted(context, want, op, decode_q_len, refusal);
    if (!accepted) {
      if (first_refusal.empty()) first_refusal = refusal;
      notes.push_back(fmt::format("{} with {} did not run: {}", name, want.name, refusal));
      continue;
    }
    run_one(caller, *accepted);
    if (report.kernels.empty() || report.kernels.back().op != op_name(op)) {
      report.kernels.push_back({op_name(op), accepted->answer.kernel});
    }
  }
  // Refused altogether: the plainest problem has the plainest reason.
  if (notes.size() == kWants.size()) notes.erase(notes.begin(), notes.end() - 1);
  report.notes.insert(report.notes.end(), notes.begin(), notes.end());
}

}  // namespace

void run_probe_problems(const PluginContext& context, const PluginStage& stage,
                        PluginReport& report) {
  const Caller caller(context, stage);
  std::string first_refusal;
  probe_operation(context, caller, HEDDLE_OP_FORWARD, 0, report, first_refusal);
  probe_operation(context, caller, HEDDLE_OP_BACKWARD, 0, report, first_refusal);
  probe_operation(context, caller, HEDDLE_OP_DECODE, 1, report, first_refusal);
  probe_operation(context, caller, HEDDLE_OP_DECODE, 3, report, first_refusal);
  if (report.kernels.empty()) {
    throw plugin_error(
        "refuses every problem of the probe, so its numbers cannot be checked: " + first_refusal,
        "choose another attention.backend");
  }
}

}  // namespace heddle
