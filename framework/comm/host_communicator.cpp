#include "framework/comm/host_communicator.h"

#include <algorithm>

#include "framework/comm/call_timer.h"
#include "framework/core/activity.h"
#include "framework/core/error.h"
#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

// What is left of a piece of `count` elements in the round that begins at element `begin`.
int64_t round_length(int64_t count, int64_t begin, int64_t step) {
  return std::clamp<int64_t>(count - begin, 0, step);
}

}  // namespace

HostCommunicator::HostCommunicator(const RankInfo& info, const MessageLimits& limits)
    : Communicator(info), limits_(limits) {
  const int64_t slot = std::min(limits.message_bytes, limits.scratch_bytes / info.world_size);
  slot_bytes_ = std::max<int64_t>(slot, sizeof(double)) / sizeof(double) * sizeof(double);
  scratch_ = HostBuffer(slot_bytes_ * info.world_size, "communication scratch");
  sends_.reserve(info.world_size);
  receives_.reserve(info.world_size);
}

void HostCommunicator::start(int64_t ticket, Collective collective, Element element,
                             std::byte* data, std::span<const int64_t> counts) {
  if (world_size() == 1) return;
  const CallTimer timer(&counters_);
  if (head_ == queued_) {
    head_ = queued_ = 0;
    flight_started_ = Clock::now();
  }
  if (queued_ == queue_.size()) queue_.emplace_back();
  Operation& op = queue_[queued_++];
  op.ticket = ticket;
  op.collective = collective;
  op.element = element;
  op.data = data;
  op.begin = 0;
  op.offsets.resize(world_size() + 1);
  for (int r = 0; r < world_size(); ++r) op.offsets[r + 1] = op.offsets[r] + counts[r];
  const int64_t own = counts[rank()];
  counters_.bytes_sent += element_bytes(element) * (collective == Collective::kReduceScatter
                                                        ? op.offsets.back() - own
                                                        : (world_size() - 1) * own);
  advance(ticket, false);
}

bool HostCommunicator::finished(int64_t ticket) {
  if (head_ == queued_) return true;
  const CallTimer timer(&counters_);
  advance(ticket, false);
  return head_ == queued_ || queue_[head_].ticket > ticket;
}

void HostCommunicator::wait(int64_t ticket) {
  if (head_ == queued_) return;
  const CallTimer timer(&counters_);
  const Operation& op = queue_[head_];
  const activity::CollectiveScope scope(
      op.collective == Collective::kReduceScatter ? "reduce_scatter" : "all_gather", op.ticket);
  advance(ticket, true);
}

void HostCommunicator::advance(int64_t ticket, bool block) {
  while (head_ < queued_) {
    Operation& op = queue_[head_];
    if (block && op.ticket > ticket) return;
    if (!exchanging_ && !start_round(op)) {
      if (++head_ == queued_) counters_.seconds_in_flight += seconds_since(flight_started_);
      continue;
    }
    if (block) {
      wait_exchange();
    } else if (!test_exchange()) {
      return;
    }
    exchanging_ = false;
    end_round(op);
  }
}

std::byte* HostCommunicator::scratch(int peer) const {
  return static_cast<std::byte*>(scratch_.data()) + peer * slot_bytes_;
}

int64_t HostCommunicator::round_elements(const Operation& op) const {
  const int64_t size = element_bytes(op.element);
  return op.collective == Collective::kReduceScatter
             ? slot_bytes_ / size
             : std::max<int64_t>(limits_.message_bytes / size, 1);
}

bool HostCommunicator::start_round(Operation& op) {
  int64_t longest = 0;
  for (int r = 0; r < world_size(); ++r) longest = std::max(longest, op.count(r));
  if (op.begin >= longest) return false;
  sends_.clear();
  receives_.clear();
  if (op.collective == Collective::kReduceScatter) {
    plan_reduce(op);
  } else {
    plan_gather(op);
  }
  start_exchange(sends_, receives_);
  exchanging_ = true;
  return true;
}

// An all-to-all of the pieces: the own one of every other rank comes into scratch.
void HostCommunicator::plan_reduce(const Operation& op) {
  const int64_t step = round_elements(op);
  const int64_t size = element_bytes(op.element);
  const int64_t own = round_length(op.count(rank()), op.begin, step);
  for (int i = 1; i < world_size(); ++i) {
    const int to = (rank() + i) % world_size();
    const int from = (rank() + world_size() - i) % world_size();
    const int64_t length = round_length(op.count(to), op.begin, step);
    add_message(&sends_, op.data + (op.offsets[to] + op.begin) * size, length * size, to);
    add_message(&receives_, scratch(from), own * size, from);
  }
}

void HostCommunicator::plan_gather(const Operation& op) {
  const int64_t step = round_elements(op);
  const int64_t size = element_bytes(op.element);
  const auto add_piece = [&](std::vector<Message>* list, int owner, int peer) {
    const int64_t length = round_length(op.count(owner), op.begin, step);
    add_message(list, op.data + (op.offsets[owner] + op.begin) * size, length * size, peer);
  };
  for (int i = 1; i < world_size(); ++i) {
    const int to = (rank() + i) % world_size();
    const int from = (rank() + world_size() - i) % world_size();
    add_piece(&sends_, rank(), to);
    add_piece(&receives_, from, from);
  }
}

void HostCommunicator::add_message(std::vector<Message>* list, std::byte* data, int64_t bytes,
                                   int peer) const {
  if (bytes > 0) list->push_back({data, bytes, peer});
}

void HostCommunicator::end_round(Operation& op) {
  const int64_t step = round_elements(op);
  if (op.collective == Collective::kReduceScatter) {
    const int64_t own = round_length(op.count(rank()), op.begin, step);
    const int64_t at = op.offsets[rank()] + op.begin;
    if (op.element == Element::kFloat) {
      sum_in_rank_order(reinterpret_cast<float*>(op.data) + at, own);
    } else {
      sum_in_rank_order(reinterpret_cast<double*>(op.data) + at, own);
    }
  }
  op.begin += step;
}

template <class T>
void HostCommunicator::sum_in_rank_order(T* own, int64_t n) {
  constexpr int64_t kBlock = 1024;  // a running sum that stays in the first-level cache
  parallel_for(n, 16 * kBlock, [&](int64_t begin, int64_t end) {
    T sum[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t length = std::min(kBlock, end - i);
      for (int r = 0; r < world_size(); ++r) {
        const T* x = (r == rank() ? own : reinterpret_cast<const T*>(scratch(r))) + i;
        if (r == 0) {
          std::copy_n(x, length, sum);
        } else {
          for (int64_t j = 0; j < length; ++j) sum[j] += x[j];
        }
      }
      std::copy_n(sum, length, own + i);
    }
  });
}

void HostCommunicator::exchange() {
  if (sends_.empty() && receives_.empty()) return;
  for (const Message& m : sends_) counters_.bytes_sent += m.bytes;
  start_exchange(sends_, receives_);
  wait_exchange();
}

// Along a binomial tree: in round k the ranks below 2^k (counted from the root) hand it on.
void HostCommunicator::broadcast(std::span<std::byte> data, int root) {
  HEDDLE_CHECK(root >= 0 && root < world_size(), "broadcast: no such rank");
  wait(started());
  const activity::CollectiveScope scope("broadcast", started());
  const int place = (rank() - root + world_size()) % world_size();
  const auto add_all = [&](std::vector<Message>* list, int peer_place) {
    const int peer = (peer_place + root) % world_size();
    for (size_t begin = 0; begin < data.size(); begin += limits_.message_bytes) {
      const int64_t bytes = std::min<int64_t>(data.size() - begin, limits_.message_bytes);
      add_message(list, data.data() + begin, bytes, peer);
    }
  };
  for (int reach = 1; reach < world_size(); reach *= 2) {
    sends_.clear();
    receives_.clear();
    if (place < reach && place + reach < world_size()) add_all(&sends_, place + reach);
    if (place >= reach && place < 2 * reach) add_all(&receives_, place - reach);
    exchange();
  }
}

// Dissemination: after round k a rank has heard of the 2^k ranks before it.
void HostCommunicator::barrier() {
  wait(started());
  const activity::CollectiveScope scope("barrier", started());
  for (int reach = 1; reach < world_size(); reach *= 2) {
    std::byte token{1}, received{0};
    sends_.clear();
    receives_.clear();
    add_message(&sends_, &token, 1, (rank() + reach) % world_size());
    add_message(&receives_, &received, 1, (rank() + world_size() - reach) % world_size());
    exchange();
  }
}

}  // namespace heddle
