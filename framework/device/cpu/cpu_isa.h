// Which instruction set the CPU ops run in.
#pragma once

#include <string>

#include "kernels/cpu/ops/ops_table.h"

namespace heddle {

enum class CpuIsa { kBaseline, kAvx2, kAvx512 };

const char* cpu_isa_name(CpuIsa isa);

// Asks processor and operating system.
bool cpu_isa_runs_here(CpuIsa isa);

// The best that runs here, or what `wanted` (HEDDLE_CPU_ISA: baseline | avx2 | avx512) names; empty
// or "auto" means the best. Throws heddle::Error (environment) when the name is unknown or that set
// does not run here.
CpuIsa choose_cpu_isa(const std::string& wanted);

const kernels::OpsTable& ops_table(CpuIsa isa);

}  // namespace heddle
