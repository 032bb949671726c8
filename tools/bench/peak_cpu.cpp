// Prints this machine's FMA peak in GFLOP/s on all threads, the median of five bursts: what the
// benchmark scripts sample before and after a run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "framework/core/parallel_for.h"
#include "framework/device/device.h"

int main(int argc, char** argv) {
  heddle::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 0);
  const auto device = heddle::make_cpu_device();
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i) rates.push_back(device->measure_peak_flops() / 1e9);
  std::sort(rates.begin(), rates.end());
  std::printf("%.1f\n", rates[2]);
}
