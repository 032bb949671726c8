// Collectives over host memory, built from messages between pairs of ranks. Backends that move
// bytes between hosts derive from it and bring the messages; sums and pieces are the same for all.
//
// Cost per rank with W ranks and n elements: reduce_scatter and all_gather each send and receive
// (W-1)/W * n elements; all_reduce is one of each.
#pragma once

#include "framework/comm/communicator.h"
#include "framework/core/buffer.h"

namespace heddle {

// Bytes of one message, or the room for one.
struct Message {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;
};

struct MessageLimits {
  int64_t message_bytes = int64_t{1} << 30;  // MPI counts are int
  int64_t scratch_bytes = int64_t{16} << 20;
};

class HostCommunicator : public Communicator {
 public:
  void all_reduce_sum(std::span<float> data) override;
  void all_reduce_sum(std::span<double> data) override;
  void reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts) override;
  void reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts) override;
  void all_gather(std::span<float> data, std::span<const int64_t> counts) override;
  void all_gather(std::span<double> data, std::span<const int64_t> counts) override;
  void all_gather(std::span<std::byte> data, std::span<const int64_t> counts) override;
  void broadcast(std::span<std::byte> data, int root) override;
  using Communicator::all_reduce_sum;
  using Communicator::broadcast;

 protected:
  HostCommunicator(const RankInfo& info, const MessageLimits& limits);

  // Sends and receives all of them, at most one of each per peer, each at most message_bytes long
  // and known to both sides. Returns when all are done.
  virtual void exchange(std::span<const Message> sends, std::span<const Message> receives) = 0;
  // At most message_bytes.
  virtual void broadcast_message(std::byte* data, int64_t bytes, int root) = 0;

 private:
  // Checks counts and lays the pieces out (offsets_) in a buffer of `elements`.
  void set_pieces(std::span<const int64_t> counts, size_t elements);
  template <class T>
  void reduce_scatter(std::span<T> data, std::span<const int64_t> counts);
  template <class T>
  void all_reduce(std::span<T> data);
  // Adds up `n` elements at `own` with the other ranks' in scratch_, in rank order.
  template <class T>
  void sum_in_rank_order(T* own, int64_t n);
  void gather(std::byte* data, std::span<const int64_t> counts, int64_t element_size);
  template <class T>
  T* scratch(int peer) const;

  MessageLimits limits_;
  int64_t slot_bytes_ = 0;  // scratch for one peer
  HostBuffer scratch_;
  std::vector<Message> sends_, receives_;  // planned once: collectives allocate nothing
  std::vector<int64_t> offsets_, split_;
};

}  // namespace heddle
