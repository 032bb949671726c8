#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "kernels/cpu/attention/attention.h"

namespace heddle::kernels::cpu {

namespace baseline {
extern const AttentionKernels kKernels;
}
namespace avx2 {
extern const AttentionKernels kKernels;
}
namespace avx512 {
extern const AttentionKernels kKernels;
}
namespace avx512_logic {
extern const AttentionKernels kKernels;
}

bool isa_available(Isa isa) {
  // GCC's tests include what the operating system saves (XCR0).
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512Logic:
      return avx2;
    case Isa::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return false;
}

const AttentionKernels& attention_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return avx2::kKernels;
    case Isa::kAvx512:
      return avx512::kKernels;
    case Isa::kAvx512Logic:
      return avx512_logic::kKernels;
    case Isa::kBaseline:
      break;
  }
  return baseline::kKernels;
}

Isa select_isa(const char** refused) {
  if (refused) *refused = nullptr;
  const char* wanted = std::getenv("HEDDLE_CPU_ISA");
  if (wanted && *wanted) {
    for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Logic}) {
      if (isa_available(isa) && std::strcmp(wanted, attention_kernels(isa).isa) == 0) return isa;
    }
    if (refused) *refused = wanted;
  }
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (isa_available(isa)) return isa;
  }
  return Isa::kBaseline;
}

}  // namespace heddle::kernels::cpu
