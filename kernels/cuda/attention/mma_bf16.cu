#include "kernels/cuda/attention/launch_mma.cuh"

namespace heddle::kernels::cuda {
HEDDLE_INSTANTIATE_MMA(__nv_bfloat16);
}  // namespace heddle::kernels::cuda
