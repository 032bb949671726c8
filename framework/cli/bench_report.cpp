#include "framework/cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/attention/names.h"
#include "plugins/conformance/case.h"

namespace heddle {
namespace {

// Variation of the peak above which a machine was not ours alone.
constexpr double kBusySpread = 0.25;

std::string bytes_text(uint64_t bytes) {
  if (bytes == 0) return "0";
  const double kib = static_cast<double>(bytes) / 1024.0;
  return kib < 1024.0 ? fmt::format("{:.1f} KiB", kib) : fmt::format("{:.1f} MiB", kib / 1024.0);
}

std::string line(const BenchResult& result, const BenchRow& r) {
  const std::string head =
      fmt::format("  {:<8}  {:<24}", op_name(r.shape.op), r.plugin + " " + r.last.version);
  if (r.failed()) return head + (r.last.refused ? "refused: " : "failed: ") + r.last.failure + "\n";
  const bool decode = r.shape.op == HEDDLE_OP_DECODE;
  const bool tera = !decode && result.device != "cpu";
  const double share = result.share(r);
  return head + fmt::format("{:>12.1f} {:>7.0f}% {:>9.2f} {:<7} {:>7} {:>11}  {}{}\n",
                            r.median_us(), 100.0 * r.spread(), tera ? 1e-3 * r.rate() : r.rate(),
                            decode ? "GB/s"
                            : tera ? "TFLOP/s"
                                   : "GFLOP/s",
                            share > 0.0 ? fmt::format("{:.1f}%", 100.0 * share) : "-",
                            bytes_text(r.last.workspace_bytes), r.last.kernel,
                            r.last.deterministic || decode ? "" : " (not deterministic)");
}

std::string heading(const BenchResult& r) {
  if (r.device == "cpu") {
    return fmt::format(
        "{}; peak {:.1f} GFLOP/s, reads {:.1f} GB/s (medians of bursts between the repetitions)\n",
        r.machine, r.peak_flops / 1e9, r.bytes_per_second / 1e9);
  }
  const std::string peak = r.peak_flops > 0.0
                               ? fmt::format("stated peak {:.0f} TFLOP/s", r.peak_flops / 1e12)
                               : "peak not known (--peak-tflops states it)";
  return fmt::format("{}; tensors {}; {}\n", r.machine, conformance::dtype_name(r.dtype), peak);
}

json::object row_json(const BenchResult& result, const BenchRow& r) {
  json::object o{{"op", op_name(r.shape.op)},
                 {"batch", r.shape.batch},
                 {"seq_len", r.shape.seq_len},
                 {"n_head", r.shape.kind.n_head},
                 {"n_kv_head", r.shape.kind.n_kv_head},
                 {"head_dim", r.shape.kind.head_dim},
                 {"window_left", r.shape.kind.window_left},
                 {"plugin", r.plugin},
                 {"version", r.last.version}};
  if (r.failed()) {
    o[r.last.refused ? "refused" : "failed"] = r.last.failure;
    return o;
  }
  o["kernel"] = r.last.kernel;
  o["us"] = json::value_from(r.us);
  o["median_us"] = r.median_us();
  o["spread"] = r.spread();
  o["gflops"] = flops(r.shape) / r.median_us() / 1e3;
  if (r.shape.op == HEDDLE_OP_DECODE) o["gbytes_per_second"] = r.rate();
  if (const double share = result.share(r); share > 0.0) {
    o[r.shape.op == HEDDLE_OP_DECODE ? "share_of_bandwidth" : "share_of_peak"] = share;
  }
  o["workspace_bytes"] = r.last.workspace_bytes;
  o["est_us"] = r.last.est_us;
  o["deterministic"] = r.last.deterministic;
  return o;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

double relative_spread(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  const auto [smallest, largest] = std::minmax_element(values.begin(), values.end());
  return (*largest - *smallest) / median(values);
}

double BenchRow::median_us() const {
  return median(us);
}

double BenchRow::rate() const {
  if (us.empty()) return 0.0;
  const double work = shape.op == HEDDLE_OP_DECODE ? cache_bytes(shape) : flops(shape);
  return work / median_us() / 1e3;
}

double BenchResult::share(const BenchRow& row) const {
  const double limit = row.shape.op == HEDDLE_OP_DECODE ? bytes_per_second : peak_flops;
  return limit > 0.0 ? 1e9 * row.rate() / limit : 0.0;
}

std::string bench_table(const BenchResult& result) {
  std::string text = heading(result);
  const BenchRow* above = nullptr;
  for (const BenchRow& r : result.rows) {
    // A decode stands under the training shape that it continues, when there is one.
    const bool same = above != nullptr && above->shape.kind == r.shape.kind &&
                      above->shape.seq_len == r.shape.seq_len &&
                      (above->shape.batch == r.shape.batch || r.shape.op == HEDDLE_OP_DECODE);
    if (!same) {
      text += fmt::format("\n{}\n  {:<8}  {:<24}{:>12} {:>8} {:>17} {:>7} {:>11}  {}\n",
                          shape_text(r.shape), "op", "plugin", "median us", "spread", "rate",
                          "limit", "workspace", "kernel");
    }
    above = &r;
    text += line(result, r);
  }
  text +=
      "\nspread: (slowest - fastest) / median of the repetitions. limit: share of peak FLOP/s, in\n"
      "decode of read bandwidth. FLOP: 4 D a visible pair forward, 10 D backward. decode: one "
      "token\n"
      "of one row against T cached ones that are in no processor cache.\n";
  if (result.peak_spread > kBusySpread) {
    text += fmt::format(
        "The peak itself varied by {:.0f}% between repetitions: something else runs on this\n"
        "machine, and the numbers above are not worth much.\n",
        100.0 * result.peak_spread);
  }
  return text;
}

json::object bench_json(const BenchResult& result) {
  json::array rows;
  for (const BenchRow& r : result.rows) rows.emplace_back(row_json(result, r));
  return {{"machine", result.machine},
          {"device", result.device},
          {"dtype", conformance::dtype_name(result.dtype)},
          {"threads", result.threads},
          {"peak_flops", result.peak_flops},
          {"peak_spread", result.peak_spread},
          {"read_bytes_per_second", result.bytes_per_second},
          {"rows", std::move(rows)}};
}

}  // namespace heddle
