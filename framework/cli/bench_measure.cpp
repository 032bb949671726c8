#include "framework/cli/bench_measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "framework/attention/child_process.h"
#include "framework/attention/names.h"
#include "framework/attention/plugin.h"
#include "framework/attention/validation_reference.h"
#include "framework/core/buffer.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/device.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastUs = 30000.0;  // that all timed calls of one measurement take together
constexpr int64_t kMostCalls = 1000;
constexpr double kSlowUs = 500000.0;      // a call that needs no second one
constexpr size_t kColdBytes = 192 << 20;  // of caches that a decode rotates through
constexpr double kMostVerified = 3e8;     // pairs times head_dim

heddle_attention_problem problem_of(const BenchCase& c, uint32_t op, bool with_lse) {
  const int64_t q_len = op == HEDDLE_OP_DECODE ? 1 : c.seq_len;
  return make_attention_problem(c.kind, op, c.batch, q_len, c.seq_len, c.layout, with_lse);
}

// Exactly what query() asked for.
struct Workspace {
  explicit Workspace(const QueryAnswer& answer)
      : block(answer.workspace_bytes + answer.workspace_align, "workspace"),
        bytes(answer.workspace_bytes) {
    const uint64_t align = answer.workspace_align;
    const auto address = reinterpret_cast<uintptr_t>(block.data());
    data = reinterpret_cast<void*>((address + align - 1) & ~(align - 1));
  }
  HostBuffer block;
  void* data = nullptr;
  uint64_t bytes = 0;
};

// The tensors of a case, filled with noise. A decode has several caches, so that each call finds
// one that is in no processor cache, as between the layers of a model.
class Tensors {
 public:
  Tensors(const BenchCase& c, const heddle_attention_problem& p) : p_(p) {
    const size_t caches = c.op == HEDDLE_OP_DECODE ? copies(rows(p.k.batch) * 2) : 1;
    for (HostBuffer* x : {&q_, &out_, &dout_, &dq_}) *x = filled(rows(queries()));
    for (size_t i = 0; i < caches; ++i) {
      k_.push_back(filled(rows(p.k.batch)));
      v_.push_back(filled(rows(p.v.batch)));
    }
    dk_ = filled(rows(p.k.batch));
    dv_ = filled(rows(p.v.batch));
    lse_ = HostBuffer(static_cast<size_t>(p.batch * p.n_head * p.q_len) * sizeof(float), "lse");
    kv_len_.assign(static_cast<size_t>(p.batch), static_cast<int32_t>(c.seq_len));
  }

  heddle_attention_call call(const Workspace& workspace, heddle_text* err, int64_t n) const {
    const auto i = static_cast<size_t>(n) % k_.size();
    heddle_attention_call c{};
    c.struct_size = sizeof c;
    c.q = q_.data();
    c.k = k_[i].data();
    c.v = v_[i].data();
    c.out = out_.data();
    c.lse = lse_.f32();
    c.dout = dout_.data();
    c.dq = dq_.data();
    c.dk = dk_.data();
    c.dv = dv_.data();
    c.kv_len = kv_len_.data();
    c.workspace = workspace.data;
    c.workspace_bytes = workspace.bytes;
    c.err = err;
    return c;
  }

 private:
  int64_t queries() const {
    return std::max({p_.q.batch, p_.out.batch, p_.dq.batch, p_.dout.batch});
  }
  size_t rows(int64_t batch_stride) const {
    return static_cast<size_t>(p_.batch * batch_stride) * sizeof(float);
  }
  static size_t copies(size_t bytes) {
    return std::clamp<size_t>(kColdBytes / std::max<size_t>(bytes, 1), 1, 4096);
  }
  static HostBuffer filled(size_t bytes) {
    HostBuffer buffer(bytes, "a tensor of the benchmark");
    const auto n = static_cast<int64_t>(bytes / sizeof(float));
    parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
      uint32_t state = static_cast<uint32_t>(begin) * 2654435761u + 12345u;
      for (int64_t i = begin; i < end; ++i) {
        state = state * 1664525u + 1013904223u;
        buffer.f32()[i] = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
      }
    });
    return buffer;
  }

  const heddle_attention_problem& p_;
  HostBuffer q_, out_, dout_, dq_, dk_, dv_, lse_;
  std::vector<HostBuffer> k_, v_;
  std::vector<int32_t> kv_len_;
};

class Bench {
 public:
  Bench(const std::string& path, const BenchCase& c)
      : case_(c), library_(PluginLibrary::load(path)), context_(library_, cpu_plugin_device()) {}

  Measurement run(bool verify) {
    Measurement m;
    m.version = library_.version();
    const bool lse = !context_.has(HEDDLE_PROP_NO_LSE);
    heddle_attention_problem p = problem_of(case_, case_.op, lse && case_.op == HEDDLE_OP_FORWARD);
    const QueryAnswer answer = context_.query_preferring_determinism(p);
    if (!answer.supported) {
      m.refused = true;
      m.failure = answer.refusal;
      return m;
    }
    m.kernel = answer.kernel;
    m.workspace_bytes = answer.workspace_bytes;
    m.est_us = answer.est_time_us;
    m.deterministic = (p.flags & HEDDLE_FLAG_DETERMINISTIC) != 0;
    const Tensors tensors(case_, p);
    if (case_.op == HEDDLE_OP_BACKWARD) prepare_backward(tensors, lse);
    const Workspace workspace(answer);
    time_calls(p, tensors, workspace, m);
    if (verify) m.failure = wrong(p, tensors, workspace);
    return m;
  }

 private:
  void call(const heddle_attention_problem& p, const Tensors& tensors, const Workspace& workspace,
            int64_t n) {
    char text[256] = "";
    heddle_text err{text, sizeof text, 0};
    const uint32_t status = context_.run(p, tensors.call(workspace, &err, n));
    if (status == HEDDLE_OK) return;
    throw plugin_error(fmt::format("{} returned {}: {}", op_name(p.op), status_name(status),
                                   clean_text(std::string_view(text, strnlen(text, sizeof text)))));
  }

  // out and lse that belong to q, k and v.
  void prepare_backward(const Tensors& tensors, bool lse) {
    heddle_attention_problem p = problem_of(case_, HEDDLE_OP_FORWARD, lse);
    const QueryAnswer answer = context_.query_preferring_determinism(p);
    if (!answer.supported) throw plugin_error("forward: " + answer.refusal);
    call(p, tensors, Workspace(answer), 0);
  }

  void time_calls(const heddle_attention_problem& p, const Tensors& tensors,
                  const Workspace& workspace, Measurement& m) {
    const auto once = [&](int64_t n) {
      const Clock::time_point start = Clock::now();
      call(p, tensors, workspace, n);
      return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    };
    std::vector<double> times = {once(0)};
    double total = 0.0;
    if (times[0] < kSlowUs) {
      times.clear();  // that was the warm-up
      while (times.size() < 3 || (total < kLeastUs && std::ssize(times) < kMostCalls)) {
        times.push_back(once(std::ssize(times) + 1));
        total += times.back();
      }
    }
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    m.us = times[times.size() / 2];
    m.calls = std::ssize(times);
  }

  // Empty, or how the results differ from the definition.
  std::string wrong(const heddle_attention_problem& p, const Tensors& tensors,
                    const Workspace& workspace) {
    const double cost = static_cast<double>(visible_pairs(case_)) *
                        static_cast<double>(case_.kind.head_dim * case_.kind.n_head) /
                        static_cast<double>(case_.kind.n_kv_head);
    if (cost > kMostVerified) return {};
    call(p, tensors, workspace, 0);
    const std::string text = compare_with_reference(p, tensors.call(workspace, nullptr, 0),
                                                    p.batch - 1, p.n_kv_head - 1);
    return text.empty() ? text : "wrong numbers: " + text;
  }

  const BenchCase& case_;
  PluginLibrary& library_;
  PluginContext context_;
};

json::object to_json(const Measurement& m) {
  return {{"failure", m.failure},
          {"refused", m.refused},
          {"us", m.us},
          {"calls", m.calls},
          {"version", m.version},
          {"kernel", m.kernel},
          {"workspace_bytes", m.workspace_bytes},
          {"est_us", m.est_us},
          {"deterministic", m.deterministic}};
}

Measurement from_json(const json::object& o) {
  Measurement m;
  m.failure = json::value_to<std::string>(o.at("failure"));
  m.refused = o.at("refused").as_bool();
  m.us = o.at("us").to_number<double>();
  m.calls = o.at("calls").to_number<int64_t>();
  m.version = json::value_to<std::string>(o.at("version"));
  m.kernel = json::value_to<std::string>(o.at("kernel"));
  m.workspace_bytes = o.at("workspace_bytes").to_number<uint64_t>();
  m.est_us = o.at("est_us").to_number<double>();
  m.deterministic = o.at("deterministic").as_bool();
  return m;
}

std::string printed(const std::string& output) {
  const std::string text = clean_text(output, 200);
  return text.empty() ? "" : "; it printed: " + text;
}

}  // namespace

int run_measurement(const std::string& path, const std::string& case_text, int threads,
                    bool verify) {
  const int fd = child_report_descriptor();
  set_num_threads(threads);
  Measurement m;
  try {
    const BenchCase c = case_from_text(case_text);
    m = Bench(path, c).run(verify);
  } catch (const Error& error) {
    m.failure = error.message();
  }
  const std::string text = json::serialize(to_json(m)) + "\n";
  return ::write(fd, text.data(), text.size()) == std::ssize(text) ? 0 : 1;
}

Measurement measure_in_child(const std::string& path, const BenchCase& c,
                             const MeasureOptions& options) {
  std::vector<std::string> arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                        "plugin",
                                        "bench-case",
                                        path,
                                        case_to_text(c),
                                        std::to_string(options.threads)};
  if (options.verify) arguments.push_back("--verify");
  const ChildResult child = run_child(arguments, options.deadline);
  Measurement m;
  if (child.timed_out) {
    m.failure = fmt::format("gave no result within {} s{}", options.deadline.count() / 1000,
                            printed(child.output));
  } else if (child.signal != 0) {
    m.failure = fmt::format("crashed with signal {} ({}){}", child.signal, strsignal(child.signal),
                            printed(child.output));
  } else if (child.exit_status != 0 || !child.report.ends_with('\n')) {
    m.failure = fmt::format("ended its process with exit status {}{}", child.exit_status,
                            printed(child.output));
  } else {
    m = from_json(json::parse_strict(child.report).as_object());
  }
  return m;
}

MachineLimits measure_machine() {
  MachineLimits limits;
  limits.flops = make_cpu_device()->measure_peak_flops();
  static const HostBuffer block(256 << 20, "memory to read");
  std::memset(block.data(), 1, block.bytes());  // pages that were never written are one page
  const auto n = static_cast<int64_t>(block.bytes() / sizeof(uint64_t));
  std::vector<uint64_t> sums(static_cast<size_t>(num_threads()));
  for (int pass = 0; pass < 3; ++pass) {
    const Clock::time_point start = Clock::now();
    parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end, int worker) {
      const auto* words = static_cast<const uint64_t*>(block.data());
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (int64_t i = begin; i + 3 < end; i += 4) {
        a += words[i];
        b += words[i + 1];
        c += words[i + 2];
        d += words[i + 3];
      }
      sums[static_cast<size_t>(worker)] += a + b + c + d;
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    limits.bytes_per_second =
        std::max(limits.bytes_per_second, static_cast<double>(block.bytes()) / seconds);
  }
  volatile uint64_t sink = sums[0];  // the sums are wanted
  (void)sink;
  return limits;
}

}  // namespace heddle
