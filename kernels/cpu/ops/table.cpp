// One instruction set's kernels. Compiled once per set with HEDDLE_ISA and HEDDLE_LANES defined and
// the set's flags; see CMakeLists.txt.
#include "kernels/cpu/ops/attention_inputs.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/loss.h"
#include "kernels/cpu/ops/muon.h"
#include "kernels/cpu/ops/norms.h"
#include "kernels/cpu/ops/ops_table.h"
#include "kernels/cpu/ops/thin_matmul.h"

#define HEDDLE_JOIN(a, b) a##b
#define HEDDLE_TABLE(isa) HEDDLE_JOIN(ops_table_, isa)
#define HEDDLE_TEXT(x) #x
#define HEDDLE_STRING(x) HEDDLE_TEXT(x)

namespace heddle::kernels {

const OpsTable& HEDDLE_TABLE(HEDDLE_ISA)();

const OpsTable& HEDDLE_TABLE(HEDDLE_ISA)() {
  using namespace HEDDLE_ISA;
  static constexpr OpsTable kTable = {
      .isa = HEDDLE_STRING(HEDDLE_ISA),
      .lanes = HEDDLE_LANES,
      .add = HEDDLE_ISA::add,
      .sum_squares = HEDDLE_ISA::sum_squares,
      .relu2_forward = HEDDLE_ISA::relu2_forward,
      .relu2_backward = HEDDLE_ISA::relu2_backward,
      .softcap = HEDDLE_ISA::softcap,
      .adamw = HEDDLE_ISA::adamw,
      .embed_norm_forward = HEDDLE_ISA::embed_norm_forward,
      .smear_forward = HEDDLE_ISA::smear_forward,
      .smear_backward = HEDDLE_ISA::smear_backward,
      .mix_norm_forward = HEDDLE_ISA::mix_norm_forward,
      .mix_norm_backward = HEDDLE_ISA::mix_norm_backward,
      .rope_norm_forward = HEDDLE_ISA::rope_norm_forward,
      .rope_norm_backward = HEDDLE_ISA::rope_norm_backward,
      .value_embed_forward = HEDDLE_ISA::value_embed_forward,
      .loss_rows = HEDDLE_ISA::loss_rows,
      .thin_matmul = HEDDLE_ISA::thin_matmul,
      .embed_norm_backward = HEDDLE_ISA::embed_norm_backward,
      .value_embed_backward = HEDDLE_ISA::value_embed_backward,
      .muon_momentum = HEDDLE_ISA::muon_momentum,
      .scale_rows = HEDDLE_ISA::scale_rows,
      .row_squares = HEDDLE_ISA::row_squares,
      .col_squares = HEDDLE_ISA::col_squares,
      .muon_update = HEDDLE_ISA::muon_update,
      .exp = HEDDLE_ISA::exp_range,
      .tanh = HEDDLE_ISA::tanh_range,
      .sigmoid = HEDDLE_ISA::sigmoid_range,
      .fma_burst = HEDDLE_ISA::fma_burst,
  };
  return kTable;
}

}  // namespace heddle::kernels
