#include "framework/device/cpu/cpu_isa.h"

#include <array>

#include "framework/core/error.h"

namespace heddle {
namespace {

constexpr std::array kBestFirst = {CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kBaseline};

}  // namespace

const char* cpu_isa_name(CpuIsa isa) {
  return ops_table(isa).isa;
}

// __builtin_cpu_supports looks at XCR0 too: a set whose registers the system does not save is off.
bool cpu_isa_runs_here(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBaseline:
      return true;
    case CpuIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("fma");
  }
  return false;
}

CpuIsa choose_cpu_isa(const std::string& wanted) {
  CpuIsa best = CpuIsa::kBaseline;
  for (CpuIsa isa : kBestFirst) {
    if (cpu_isa_runs_here(isa)) {
      best = isa;
      break;
    }
  }
  if (wanted.empty() || wanted == "auto") return best;
  for (CpuIsa isa : kBestFirst) {
    if (wanted != cpu_isa_name(isa)) continue;
    if (cpu_isa_runs_here(isa)) return isa;
    throw environment_error("device",
                            "HEDDLE_CPU_ISA=" + wanted + ": this processor has no " + wanted +
                                ", its best is " + cpu_isa_name(best),
                            "unset HEDDLE_CPU_ISA or set it to " + std::string(cpu_isa_name(best)));
  }
  throw environment_error("device",
                          "HEDDLE_CPU_ISA=" + wanted +
                              " is unknown, expected baseline, avx2, "
                              "avx512 or auto",
                          "unset HEDDLE_CPU_ISA to get the best of this processor");
}

const kernels::OpsTable& ops_table(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx512:
      return kernels::ops_table_avx512();
    case CpuIsa::kAvx2:
      return kernels::ops_table_avx2();
    case CpuIsa::kBaseline:
      break;
  }
  return kernels::ops_table_baseline();
}

}  // namespace heddle
