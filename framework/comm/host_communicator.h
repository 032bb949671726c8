// Collectives over host memory, built from messages between pairs of ranks. Backends that move
// bytes between hosts derive from it and bring the messages; sums, pieces and order are the same
// for all.
//
// Bytes that a rank hands to its peers, W ranks, buffer of n bytes, own piece of p bytes:
//   reduce_scatter  n - p           (every other piece to its owner)
//   all_gather      (W-1) * p       (the own piece to everybody)
//   broadcast       at most ceil(log2 W) * n, along a binomial tree
#pragma once

#include <chrono>

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
  void broadcast(std::span<std::byte> data, int root) override;
  void barrier() override;
  using Communicator::broadcast;

 protected:
  HostCommunicator(const RankInfo& info, const MessageLimits& limits);

  // An exchange sends and receives all of its messages. Peers know each other's sizes; each message
  // is 1 to message_bytes long; the messages of a pair arrive in the order in which they are
  // listed. One exchange is under way at a time, and its memory stays valid until it is done. It
  // may be done on this rank while it is not on another: the next one's messages wait their turn.
  virtual void start_exchange(std::span<const Message> sends,
                              std::span<const Message> receives) = 0;
  // Is the exchange done? Does not block. Not called again once it has said true.
  virtual bool test_exchange() = 0;
  virtual void wait_exchange() = 0;

  void start(int64_t ticket, Collective collective, Element element, std::byte* data,
             std::span<const int64_t> counts) override;
  bool finished(int64_t ticket) override;
  void wait(int64_t ticket) override;

 private:
  // A collective as a sequence of rounds: an exchange and, for sums, a local addition.
  struct Operation {
    int64_t ticket = 0;
    Collective collective = Collective::kAllGather;
    Element element = Element::kByte;
    std::byte* data = nullptr;
    std::vector<int64_t> offsets;  // elements, world_size + 1
    int64_t begin = 0;             // the round's first element of every piece

    int64_t count(int rank) const { return offsets[rank + 1] - offsets[rank]; }
  };

  // Moves operations on until `ticket` is finished or, unless `block`, an exchange is not.
  void advance(int64_t ticket, bool block);
  // False: the operation has no round left.
  bool start_round(Operation& op);
  void end_round(Operation& op);
  int64_t round_elements(const Operation& op) const;
  void plan_reduce(const Operation& op);
  void plan_gather(const Operation& op);
  void add_message(std::vector<Message>* list, std::byte* data, int64_t bytes, int peer) const;
  void exchange();  // sends_ and receives_, to the end
  // Adds up `n` elements at `own` with the other ranks' in scratch_, in rank order.
  template <class T>
  void sum_in_rank_order(T* own, int64_t n);
  std::byte* scratch(int peer) const;

  MessageLimits limits_;
  int64_t slot_bytes_ = 0;  // scratch for one peer
  HostBuffer scratch_;
  std::vector<Message> sends_, receives_;
  std::vector<Operation> queue_;  // kept for reuse: a steady step allocates nothing
  size_t head_ = 0, queued_ = 0;  // operations under way: [head_, queued_)
  bool exchanging_ = false;
  std::chrono::steady_clock::time_point flight_started_;
};

}  // namespace heddle
