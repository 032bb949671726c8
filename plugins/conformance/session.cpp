#include "plugins/conformance/session.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "plugins/conformance/faults.h"

namespace heddle::conformance {
namespace {

constexpr unsigned char kUntouched = 0xa5;
constexpr size_t kSlack = 64;

std::string text_in(const char* field, size_t size) {
  return {field, strnlen(field, size)};
}

bool untouched(const unsigned char* bytes, size_t n) {
  return std::all_of(bytes, bytes + n, [](unsigned char b) { return b == kUntouched; });
}

// A verdict and reasons with canaries behind both.
struct QueryBuffers {
  explicit QueryBuffers(uint32_t capacity)
      : verdict(sizeof(heddle_attention_verdict) + kSlack, kUntouched),
        reasons(capacity * sizeof(heddle_attention_reason) + kSlack, kUntouched) {
    auto& v = get();
    v.struct_size = sizeof(heddle_attention_verdict);
    v.reason_capacity = capacity;
    v.reasons = capacity ? reinterpret_cast<heddle_attention_reason*>(reasons.data()) : nullptr;
  }
  heddle_attention_verdict& get() {
    return *reinterpret_cast<heddle_attention_verdict*>(verdict.data());
  }
  bool verdict_intact() const {
    return untouched(verdict.data() + sizeof(heddle_attention_verdict), kSlack);
  }
  bool reasons_intact() const {
    return untouched(reasons.data() + reasons.size() - kSlack, kSlack);
  }

  std::vector<unsigned char> verdict, reasons;
};

std::string check_verdict(const heddle_attention_verdict& v, QueryBuffers& buffers) {
  if (!buffers.verdict_intact()) return "query writes beyond verdict.struct_size";
  if (!buffers.reasons_intact()) return "query writes more reasons than reason_capacity";
  if (v.supported > 1)
    return "verdict.supported is " + std::to_string(v.supported) + ", not 0 or 1";
  if (v.supported == 0) return {};
  const uint64_t align = v.workspace_align;
  if ((align & (align - 1)) != 0 || align > 4096) {
    return "workspace_align is " + std::to_string(align) + ", not a power of two up to 4096";
  }
  if (strnlen(v.kernel, sizeof v.kernel) == sizeof v.kernel) return "verdict.kernel has no NUL";
  if (!(v.est_time_us >= 0.0)) return "est_time_us is negative or NaN";
  return {};
}

std::string behalf(const heddle_attention_plugin& table, const heddle_attention_problem& p) {
  const bool offered = p.op == HEDDLE_OP_FORWARD    ? table.forward != nullptr
                       : p.op == HEDDLE_OP_BACKWARD ? table.backward != nullptr
                                                    : table.decode != nullptr;
  if (!offered) return std::string("it does not offer ") + op_name(p.op);
  const uint64_t unknown =
      p.required_features & HEDDLE_FEATURE_MUST_UNDERSTAND & ~table.known_features;
  if (unknown == 0) return {};
  return "it does not know feature bits " + std::to_string(unknown);
}

}  // namespace

std::string describe(const Reason& r) {
  std::string text = r.field + "=" + r.got + ", needs " + r.want;
  return r.hint.empty() ? text : text + "; " + r.hint;
}

std::string Answer::refusal() const {
  std::string text;
  for (const Reason& r : reasons) text += (text.empty() ? "" : " / ") + describe(r);
  return text.empty() ? "no reason given" : text;
}

Session::Session(const heddle_attention_plugin& table, Progress progress, const Target& target,
                 uint32_t only_dtype)
    : table_(&table), progress_(std::move(progress)), target_(target), only_dtype_(only_dtype) {
  context(kMostWorkers);
  explore();
}

Session::~Session() {
  progress("destroy()");
  for (heddle_attention_ctx* ctx : contexts_) {
    // A crash here has been told by CTX.
    if (ctx != nullptr) run_guarded([&] { table_->destroy(ctx); });
  }
}

bool Session::offers(uint32_t op) const {
  return op == HEDDLE_OP_FORWARD    ? table_->forward != nullptr
         : op == HEDDLE_OP_BACKWARD ? table_->backward != nullptr
                                    : table_->decode != nullptr;
}

Host& Session::host(int64_t workers) {
  auto& host = hosts_[static_cast<size_t>(workers)];
  if (!host) host = std::make_unique<Host>(static_cast<uint32_t>(workers));
  return *host;
}

heddle_attention_ctx* Session::context(int64_t workers) {
  heddle_attention_ctx*& ctx = contexts_[static_cast<size_t>(workers)];
  if (ctx == nullptr) ctx = new_context(workers);
  return ctx;
}

heddle_attention_ctx* Session::new_context(int64_t workers) {
  progress("create()");
  heddle_device device = target_.device;
  if (target_.is_cpu()) device.units = static_cast<uint32_t>(workers);
  char bytes[256] = {};
  heddle_text err{bytes, sizeof bytes, 0};
  heddle_attention_ctx* ctx = nullptr;
  uint32_t status = HEDDLE_INTERNAL;
  const Host::Entry entry;
  const auto fault =
      run_guarded([&] { status = table_->create(host(workers).services(), &device, &ctx, &err); });
  if (fault) throw std::runtime_error("create() fails with " + fault->text);
  if (status != HEDDLE_OK) {
    throw std::runtime_error("create() returns " + std::to_string(status) + ": " +
                             text_in(bytes, sizeof bytes));
  }
  return ctx;
}

Answer Session::query(const heddle_attention_problem& problem, uint32_t capacity) const {
  Answer answer;
  if (const std::string why = behalf(*table_, problem); !why.empty()) {
    answer.asked = false;
    answer.reasons.push_back({HEDDLE_REASON_OP, "op", op_name(problem.op), why, ""});
    return answer;
  }
  QueryBuffers buffers(capacity);
  heddle_attention_verdict& v = buffers.get();
  uint32_t status = HEDDLE_INTERNAL;
  const Host::Entry entry;
  const auto fault =
      run_guarded([&] { status = table_->query(contexts_[kMostWorkers], &problem, &v); });
  if (fault) {
    answer.violation = "query crashes with " + fault->text;
  } else if (status != HEDDLE_OK) {
    answer.violation = "query returns status " + std::to_string(status) + " instead of a verdict";
  } else {
    answer.violation = check_verdict(v, buffers);
  }
  if (!answer.violation.empty()) return answer;
  answer.supported = v.supported == 1;
  answer.workspace_bytes = v.workspace_bytes;
  answer.workspace_align = v.workspace_align ? v.workspace_align : 64;
  answer.reason_count = v.reason_count;
  if (answer.supported) {
    answer.kernel = v.kernel;
    return answer;
  }
  for (uint32_t i = 0; i < std::min(v.reason_count, capacity); ++i) {
    const heddle_attention_reason& r = v.reasons[i];
    answer.reasons.push_back({r.code, text_in(r.field, sizeof r.field),
                              text_in(r.got, sizeof r.got), text_in(r.want, sizeof r.want),
                              text_in(r.hint, sizeof r.hint)});
  }
  return answer;
}

bool Session::accepts(const Case& c) const {
  return query(problem(c)).supported;
}

heddle_attention_problem Session::problem(const Case& c, const CallLayout& layout) const {
  heddle_attention_problem p = make_problem(c, layout);
  p.device_type = target_.device.type;
  p.device_index = target_.device.index;
  return p;
}

// Finds the plainest problem that the plugin accepts and, from there, what else it can do. Any
// operation that is offered will do.
void Session::explore() {
  Case plain;
  plain.op = offers(HEDDLE_OP_FORWARD) ? HEDDLE_OP_FORWARD : HEDDLE_OP_DECODE;
  plain.q_len = plain.op == HEDDLE_OP_DECODE ? 1 : 64;
  plain.k_len = 64;
  std::vector<uint32_t> dtypes = {HEDDLE_DTYPE_F32, HEDDLE_DTYPE_BF16, HEDDLE_DTYPE_F16};
  if (only_dtype_ != 0) dtypes = {only_dtype_};
  if (plain.op == HEDDLE_OP_DECODE) plain.kv_len = {64};
  for (const bool lse : {true, false}) {
    for (const uint32_t align : {4u, 16u, 64u, 128u}) {
      for (const uint32_t dtype : dtypes) {
        plain.lse = lse;
        plain.align = align;
        plain.dtype = dtype;
        for (const int64_t dim : {1, 2, 4, 8, 16, 32, 64, 80, 96, 128, 256}) {
          plain.head_dim = dim;
          if (accepts(plain)) head_dims_.push_back(dim);
        }
        if (head_dims_.empty()) continue;
        plain.head_dim = head_dims_.front();
        align_ = align;
        lse_ = lse;
        for (const uint32_t other : dtypes) {
          plain.dtype = other;
          if (accepts(plain)) dtypes_.push_back(other);
        }
        return;
      }
    }
  }
}

Case Session::adapted(Case c, Adapt adapt) const {
  if (head_dims_.empty() || adapt == Adapt::kNothing) return c;
  c.align = std::max(c.align, align_);
  c.lse = c.lse && lse_;
  if (std::find(dtypes_.begin(), dtypes_.end(), c.dtype) == dtypes_.end())
    c.dtype = dtypes_.front();
  if (adapt == Adapt::kAllButHeadDim || accepts(c)) return c;
  Case other = c;
  for (const int64_t dim : head_dims_) {
    other.head_dim = dim;
    if (dim >= c.head_dim && accepts(other)) return other;
  }
  return c;
}

}  // namespace heddle::conformance
