#include "kernels/cuda/attention/launch_mma.cuh"

namespace heddle::kernels::cuda {
HEDDLE_INSTANTIATE_MMA(__half);
}  // namespace heddle::kernels::cuda
