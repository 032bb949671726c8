// One object per ISA is made from this file; see CMakeLists.txt for the flags that go with each.
//   HEDDLE_ISA    namespace of the object and name in HEDDLE_CPU_ISA
//   HEDDLE_LANES  floats per vector
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/backward.h"
#include "kernels/cpu/attention/decode.h"
#include "kernels/cpu/attention/peak.h"

#define HEDDLE_STRINGIFY_(x) #x
#define HEDDLE_STRINGIFY(x) HEDDLE_STRINGIFY_(x)

namespace heddle::kernels::cpu::HEDDLE_ISA {

extern const AttentionKernels kKernels;
const AttentionKernels kKernels = {
    HEDDLE_STRINGIFY(HEDDLE_ISA),
    plan_forward,
    run_forward,
    plan_backward,
    run_backward,
    plan_decode,
    run_decode,
    measure_peak,
};

}  // namespace heddle::kernels::cpu::HEDDLE_ISA
