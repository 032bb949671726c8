// The results of `heddle plugin bench`: statistics, a table, JSON and a picture.
#pragma once

#include <string>
#include <vector>

#include "framework/cli/bench_measure.h"

namespace heddle {

double median(std::vector<double> values);
// (largest - smallest) / median.
double relative_spread(const std::vector<double>& values);

// All measurements of one plugin on one case.
struct BenchRow {
  BenchCase shape;
  std::string plugin;      // its name
  std::vector<double> us;  // one of each repetition
  Measurement last;        // of the last repetition, or the failure

  bool failed() const { return !last.failure.empty(); }
  double median_us() const;
  double spread() const { return relative_spread(us); }
  // GFLOP/s of training operations, GB/s of decode.
  double rate() const;
};

struct BenchResult {
  std::string machine;         // "cpu (avx512, 2 threads)"
  std::string device = "cpu";  // or "cuda"
  uint32_t dtype = HEDDLE_DTYPE_F32;
  int threads = 0;
  double peak_flops = 0.0, bytes_per_second = 0.0;  // medians over the repetitions, or stated
  double peak_spread = 0.0;                         // (highest - lowest) / median
  std::vector<BenchRow> rows;                       // by case, then by plugin

  // Of what the machine can do: rate against peak FLOP/s, or against read bandwidth in decode; 0
  // where that is not known.
  double share(const BenchRow& row) const;
};

std::string bench_table(const BenchResult& result);
json::object bench_json(const BenchResult& result);
// Bars by case and plugin, height: share of what the machine can do.
std::string bench_svg(const BenchResult& result);

}  // namespace heddle
