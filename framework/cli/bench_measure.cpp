#include "framework/cli/bench_measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <memory>

#include "framework/attention/child_process.h"
#include "framework/attention/converted.h"
#include "framework/attention/names.h"
#include "framework/attention/plugin.h"
#include "framework/attention/selection.h"
#include "framework/attention/validation_reference.h"
#include "framework/cli/plugin_device.h"
#include "framework/core/buffer.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"
#include "framework/device/device.h"
#include "framework/report/device_spec.h"
#include "plugins/conformance/dtype.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastUs = 30000.0;  // that all timed calls of one measurement take together
constexpr int64_t kMostCalls = 1000;
constexpr double kBatchUs = 2000.0;       // that calls of a GPU timed together take
constexpr double kSlowUs = 500000.0;      // a call that needs no second one
constexpr size_t kColdBytes = 192 << 20;  // of caches that a decode rotates through
constexpr double kMostVerified = 3e8;     // pairs times head_dim

heddle_attention_problem problem_of(const Device& device, const BenchCase& c, uint32_t op,
                                    bool with_lse, bool any_order) {
  const int64_t q_len = op == HEDDLE_OP_DECODE ? 1 : c.seq_len;
  heddle_attention_problem p =
      device_problem(device, c.kind, op, c.batch, q_len, c.seq_len, c.layout, with_lse);
  if (c.dtype != HEDDLE_DTYPE_F32) {
    p = bf16_problem(p);  // what a run in bf16 hands over
    p.dtype = c.dtype;
  }
  if (any_order) p.flags &= ~HEDDLE_FLAG_DETERMINISTIC;
  p.required_features = heddle_attention_required_features(&p);
  return p;
}

// Exactly what query() asked for.
struct Workspace {
  Workspace(Device& device, const QueryAnswer& answer) : bytes(answer.workspace_bytes) {
    const uint64_t align = answer.workspace_align;
    block = device.allocate(bytes + align, "the workspace");
    const auto address = reinterpret_cast<uintptr_t>(block.get());
    data = reinterpret_cast<void*>((address + align - 1) & ~(align - 1));
  }
  DeviceBuffer block;
  void* data = nullptr;
  uint64_t bytes = 0;
};

// Noise in [-1, 1) as elements of a data type.
std::vector<std::byte> noise(uint32_t dtype, int64_t n) {
  const int64_t size = conformance::element_bytes(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(n * size));
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    uint32_t state = static_cast<uint32_t>(begin) * 2654435761u + 12345u;
    for (int64_t i = begin; i < end; ++i) {
      state = state * 1664525u + 1013904223u;
      const float value = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
      conformance::store_element(dtype, value, bytes.data() + i * size);
    }
  });
  return bytes;
}

// The tensors of a case, filled with noise. A decode has several caches, so that each call finds
// one that is in no processor cache, as between the layers of a model.
class Tensors {
 public:
  Tensors(Device& device, const BenchCase& c, const heddle_attention_problem& p)
      : device_(device), p_(p) {
    const int64_t keys = p.batch * p.k.batch;
    const size_t caches = c.op == HEDDLE_OP_DECODE ? copies(2 * bytes_of(keys)) : 1;
    const std::vector<std::byte> values = noise(p.dtype, std::max(queries(), keys));
    for (DeviceBuffer* x : {&q_, &out_, &dout_, &dq_}) *x = filled(values, queries());
    for (size_t i = 0; i < caches; ++i) {
      k_.push_back(filled(values, keys));
      v_.push_back(filled(values, keys));
    }
    dk_ = filled(values, keys);
    dv_ = filled(values, keys);
    lse_ = device.allocate(static_cast<size_t>(lse_count()) * sizeof(float), "lse");
    kv_len_.assign(static_cast<size_t>(p.batch), static_cast<int32_t>(c.seq_len));
    device_kv_len_ = device.allocate(kv_len_.size() * sizeof(int32_t), "cache lengths");
    device.upload(device_kv_len_.get(), kv_len_.data(), kv_len_.size() * sizeof(int32_t));
  }

  heddle_attention_call call(const Workspace& workspace, heddle_text* err, int64_t n) const {
    const auto i = static_cast<size_t>(n) % k_.size();
    heddle_attention_call c{};
    c.struct_size = sizeof c;
    c.q = q_.get();
    c.k = k_[i].get();
    c.v = v_[i].get();
    c.out = out_.get();
    c.lse = static_cast<float*>(lse_.get());
    c.dout = dout_.get();
    c.dq = dq_.get();
    c.dk = dk_.get();
    c.dv = dv_.get();
    c.kv_len = static_cast<const int32_t*>(device_kv_len_.get());
    c.workspace = workspace.data;
    c.workspace_bytes = workspace.bytes;
    c.stream = device_.stream();
    c.err = err;
    return c;
  }

  // Compares what call 0 left here with the definition.
  std::string compare(const Workspace& workspace) const {
    const heddle_attention_call on_device = call(workspace, nullptr, 0);
    std::vector<std::vector<float>> kept;
    const auto copy = [&](const void* data, int64_t n) {
      return kept.emplace_back(widened(data, n)).data();
    };
    const int64_t keys = p_.batch * p_.k.batch;
    heddle_attention_call c = on_device;
    c.q = copy(c.q, queries());
    c.k = copy(c.k, keys);
    c.v = copy(c.v, keys);
    c.out = copy(c.out, queries());
    c.dout = copy(c.dout, queries());
    c.dq = copy(c.dq, queries());
    c.dk = copy(c.dk, keys);
    c.dv = copy(c.dv, keys);
    std::vector<float> lse(static_cast<size_t>(lse_count()));
    device_.download(lse.data(), lse_.get(), lse.size() * sizeof(float));
    c.lse = lse.data();
    c.kv_len = kv_len_.data();
    heddle_attention_problem host = p_;
    host.device_type = HEDDLE_DEVICE_CPU;
    host.dtype = HEDDLE_DTYPE_F32;
    return compare_with_reference(host, c, p_.batch - 1, p_.n_kv_head - 1, rounding());
  }

 private:
  int64_t queries() const {
    return p_.batch * std::max({p_.q.batch, p_.out.batch, p_.dq.batch, p_.dout.batch});
  }
  int64_t lse_count() const { return p_.batch * p_.n_head * p_.q_len; }
  size_t bytes_of(int64_t n) const {
    return static_cast<size_t>(n * conformance::element_bytes(p_.dtype));
  }
  double rounding() const {
    return p_.dtype == HEDDLE_DTYPE_BF16 ? 0x1p-9 : p_.dtype == HEDDLE_DTYPE_F16 ? 0x1p-12 : 0.0;
  }
  static size_t copies(size_t bytes) {
    return std::clamp<size_t>(kColdBytes / std::max<size_t>(bytes, 1), 1, 4096);
  }
  DeviceBuffer filled(const std::vector<std::byte>& values, int64_t n) const {
    DeviceBuffer buffer = device_.allocate(bytes_of(n), "a tensor of the benchmark");
    device_.upload(buffer.get(), values.data(), bytes_of(n));
    return buffer;
  }
  std::vector<float> widened(const void* data, int64_t n) const {
    std::vector<std::byte> bytes(bytes_of(n));
    device_.download(bytes.data(), data, bytes.size());
    std::vector<float> values(static_cast<size_t>(n));
    const auto size = static_cast<size_t>(conformance::element_bytes(p_.dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = conformance::load_element(p_.dtype, bytes.data() + i * size);
    }
    return values;
  }

  Device& device_;
  const heddle_attention_problem& p_;
  DeviceBuffer q_, out_, dout_, dq_, dk_, dv_, lse_, device_kv_len_;
  std::vector<DeviceBuffer> k_, v_;
  std::vector<int32_t> kv_len_;
};

class Bench {
 public:
  Bench(Device& device, const std::string& path, const BenchCase& c, bool any_order)
      : device_(device),
        case_(c),
        any_order_(any_order),
        library_(PluginLibrary::load(path)),
        context_(library_, plugin_device(device)) {}

  Measurement run(bool verify) {
    Measurement m;
    m.version = library_.version();
    const bool lse = !context_.has(HEDDLE_PROP_NO_LSE);
    heddle_attention_problem p =
        problem_of(device_, case_, case_.op, lse && case_.op == HEDDLE_OP_FORWARD, any_order_);
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
    const Tensors tensors(device_, case_, p);
    if (case_.op == HEDDLE_OP_BACKWARD) prepare_backward(tensors, lse);
    const Workspace workspace(device_, answer);
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
    heddle_attention_problem p = problem_of(device_, case_, HEDDLE_OP_FORWARD, lse, any_order_);
    const QueryAnswer answer = context_.query_preferring_determinism(p);
    if (!answer.supported) throw plugin_error("forward: " + answer.refusal);
    const Workspace workspace(device_, answer);
    call(p, tensors, workspace, 0);
    device_.synchronize();  // before the workspace goes
  }

  void time_calls(const heddle_attention_problem& p, const Tensors& tensors,
                  const Workspace& workspace, Measurement& m) {
    int64_t n = 0;
    double wall = 0.0;  // what the last measurement took here
    const auto timed = [&](int64_t calls) {
      const Clock::time_point start = Clock::now();
      const double us = device_.time_us([&] {
        for (int64_t i = 0; i < calls; ++i) call(p, tensors, workspace, n++);
      });
      wall = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      return us / static_cast<double>(calls);
    };
    const bool is_gpu = device_.type() != DeviceType::kCpu;
    if (is_gpu) timed(1);  // loads the kernel
    std::vector<double> times = {timed(1)};
    m.calls = 1;
    if (wall < kSlowUs) {
      // That was the warm-up. Short calls of a GPU are timed together: it must not wait for the
      // host.
      const int64_t calls =
          is_gpu ? std::clamp<int64_t>(static_cast<int64_t>(kBatchUs / wall), 1, 100) : 1;
      times.clear();
      double total = 0.0;
      while (times.size() < 3 || (total < kLeastUs && std::ssize(times) < kMostCalls)) {
        times.push_back(timed(calls));
        total += wall;
      }
      m.calls = calls * std::ssize(times);
    }
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    m.us = times[times.size() / 2];
  }

  // Empty, or how the results differ from the definition.
  std::string wrong(const heddle_attention_problem& p, const Tensors& tensors,
                    const Workspace& workspace) {
    const double cost = static_cast<double>(visible_pairs(case_)) *
                        static_cast<double>(case_.kind.head_dim * case_.kind.n_head) /
                        static_cast<double>(case_.kind.n_kv_head);
    if (cost > kMostVerified) return {};
    call(p, tensors, workspace, 0);
    const std::string text = tensors.compare(workspace);
    return text.empty() ? text : "wrong numbers: " + text;
  }

  Device& device_;
  const BenchCase& case_;
  bool any_order_;
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

int run_measurement(const std::string& path, const std::string& case_text,
                    const MeasureOptions& options) {
  const int fd = child_report_descriptor();
  set_num_threads(options.threads);
  Measurement m;
  try {
    const BenchCase c = case_from_text(case_text);
    const std::unique_ptr<Device> device = make_plugin_device(options.device);
    m = Bench(*device, path, c, options.any_order).run(options.verify);
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
                                        std::to_string(options.threads),
                                        "--device",
                                        options.device};
  if (options.verify) arguments.push_back("--verify");
  if (options.any_order) arguments.push_back("--any-order");
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

MachineLimits stated_limits(const std::string& description) {
  std::string name = description;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto says = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (says("pcie") || says("nvl") || says("40gb")) return {};  // slower ones
  for (const std::string& known : device_names()) {
    if (known == "cpu" || !says(known)) continue;
    const DeviceSpec spec = find_device(known);
    return {spec.peak_flops, spec.memory_bytes_per_s};
  }
  return {};
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
