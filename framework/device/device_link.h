// Messages between the devices of several ranks, on a stream of their own beside the compute
// stream: what the nccl communicator is made of. A device's module implements it, for CUDA with
// NCCL.
//
// Calls enqueue and return; the host never waits in one. What is enqueued runs in order. Libraries
// may need a moment after a call: busy() is asked until it says false before the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle {

// Bytes of device memory for or from another rank, at least one.
struct LinkMessage {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;
};

class DeviceLink {
 public:
  // Without finish(): the connections are cut.
  virtual ~DeviceLink() = default;

  // For people: "NCCL 2.28.9".
  virtual std::string description() const = 0;

  // Is the library still at work on the host: connecting, enqueueing, finishing? Throws comm_error
  // when it has met an error at any time, that of another rank included.
  virtual bool busy() = 0;

  // What is enqueued from now on runs after everything that the compute stream holds by now.
  virtual void follow_compute() = 0;
  // All messages at once. Peers know each other's sizes; those of a pair arrive in their order.
  virtual void exchange(std::span<const LinkMessage> sends,
                        std::span<const LinkMessage> receives) = 0;
  // own (n) = x_0 + x_1 + ... added from left to right, where x_rank is own, and the other ranks'
  // lie in `others` in rank order, `stride` elements apart.
  virtual void sum_in_rank_order(float* own, const float* others, int64_t stride, int64_t n) = 0;
  virtual void sum_in_rank_order(double* own, const double* others, int64_t stride, int64_t n) = 0;

  // Numbered marks; one that is set again forgets its old place.
  virtual void set_mark(size_t mark) = 0;
  // Has the device come by?
  virtual bool passed(size_t mark) = 0;
  // What the compute stream gets from now on runs after the mark.
  virtual void hold_compute(size_t mark) = 0;

  // Leaves in good order, with all ranks, once everything has passed; done when not busy().
  virtual void finish() = 0;
  // Cuts the connections, so that the device no longer waits for other ranks. May block, and may be
  // called while another thread is in a call of this class.
  virtual void abort() noexcept = 0;
};

}  // namespace heddle
