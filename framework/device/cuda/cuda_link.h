// A link between CUDA devices: grouped sends and receives of NCCL and a sum in rank order, on a
// stream of its own that events tie to the compute stream.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "framework/device/device_link.h"

namespace heddle {

// An id for all ranks of a link, as text of any bytes.
std::string make_nccl_id();

// Begins to connect; see DeviceLink. `device` is the ordinal, `compute` its compute stream.
std::unique_ptr<DeviceLink> make_cuda_link(int device, cudaStream_t compute, const std::string& id,
                                           int rank, int world_size);

}  // namespace heddle
