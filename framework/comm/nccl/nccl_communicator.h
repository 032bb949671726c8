// The ranks of CUDA devices, one device each: buffers in device memory travel from device to device
// over a DeviceLink (NCCL), everything else over a host communicator.
//
// Sums are those of every backend: pieces go to their owner, which adds them in rank order. So
// NCCL's own sums, whose order depends on its algorithm and on the number of ranks, are not used,
// counts may differ between ranks, and results agree with gloo and mpi to the bit. Bytes that a
// rank hands to its peers are those of host_communicator.h.
//
// start_...() with device memory enqueues behind the compute stream and returns. Work::wait() lets
// the compute stream wait, not the host; before the host waits for the compute stream itself, the
// communicator waits for what that waits for, with deadline and error checks. So do operations on
// host memory, broadcast() and barrier(), which begin once everything started before is over.
#pragma once

#include <memory>

#include "framework/comm/communicator.h"
#include "framework/comm/rendezvous.h"
#include "framework/device/device.h"

namespace heddle {

// Device memory for the pieces of other ranks; sums of more go in rounds.
inline constexpr int64_t kNcclScratchBytes = int64_t{64} << 20;

// Collective: `host` connects the same ranks, `device` is this rank's and outlives the result. The
// id goes over the store of `rendezvous`. Throws heddle::Error on all ranks: environment when NCCL
// is missing somewhere or two ranks have the same device, comm_error when the devices are not
// connected within dist.timeout_s, naming the ranks that did not come.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<Rendezvous> rendezvous,
                                                     Device& device,
                                                     int64_t scratch_bytes = kNcclScratchBytes);

// For a process that is about to end with a failure: cuts the link of this process, so that no
// kernel goes on waiting for other ranks, and waits no longer than `patience` for that. From any
// thread; what another thread is doing with the communicator fails.
void cut_device_links(Seconds patience = Seconds(2.0)) noexcept;

}  // namespace heddle
