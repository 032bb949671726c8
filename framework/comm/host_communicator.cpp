#include "framework/comm/host_communicator.h"

#include <algorithm>

#include "framework/core/error.h"
#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

// What is left of a piece of `count` elements in the round that begins at element `begin`.
int64_t round_length(int64_t count, int64_t begin, int64_t step) {
  return std::clamp<int64_t>(count - begin, 0, step);
}

}  // namespace

HostCommunicator::HostCommunicator(const RankInfo& info, const MessageLimits& limits)
    : Communicator(info), limits_(limits), offsets_(info.world_size + 1), split_(info.world_size) {
  const int64_t slot = std::min(limits.message_bytes, limits.scratch_bytes / info.world_size);
  slot_bytes_ = std::max<int64_t>(slot, sizeof(double)) / sizeof(double) * sizeof(double);
  scratch_ = HostBuffer(slot_bytes_ * info.world_size, "communication scratch");
  sends_.reserve(info.world_size);
  receives_.reserve(info.world_size);
}

void HostCommunicator::all_reduce_sum(std::span<float> data) {
  all_reduce(data);
}
void HostCommunicator::all_reduce_sum(std::span<double> data) {
  all_reduce(data);
}

void HostCommunicator::reduce_scatter_sum(std::span<float> data, std::span<const int64_t> counts) {
  reduce_scatter(data, counts);
}
void HostCommunicator::reduce_scatter_sum(std::span<double> data, std::span<const int64_t> counts) {
  reduce_scatter(data, counts);
}

void HostCommunicator::all_gather(std::span<float> data, std::span<const int64_t> counts) {
  set_pieces(counts, data.size());
  gather(reinterpret_cast<std::byte*>(data.data()), counts, sizeof(float));
}
void HostCommunicator::all_gather(std::span<double> data, std::span<const int64_t> counts) {
  set_pieces(counts, data.size());
  gather(reinterpret_cast<std::byte*>(data.data()), counts, sizeof(double));
}
void HostCommunicator::all_gather(std::span<std::byte> data, std::span<const int64_t> counts) {
  set_pieces(counts, data.size());
  gather(data.data(), counts, 1);
}

void HostCommunicator::broadcast(std::span<std::byte> data, int root) {
  HEDDLE_CHECK(root >= 0 && root < world_size(), "broadcast: no such rank");
  for (size_t begin = 0; begin < data.size(); begin += limits_.message_bytes) {
    const int64_t bytes = std::min<int64_t>(data.size() - begin, limits_.message_bytes);
    broadcast_message(data.data() + begin, bytes, root);
  }
}

void HostCommunicator::set_pieces(std::span<const int64_t> counts, size_t elements) {
  HEDDLE_CHECK(static_cast<int>(counts.size()) == world_size(), "one count per rank");
  offsets_[0] = 0;
  for (int r = 0; r < world_size(); ++r) {
    HEDDLE_CHECK(counts[r] >= 0, "negative count");
    offsets_[r + 1] = offsets_[r] + counts[r];
  }
  HEDDLE_CHECK(offsets_.back() == static_cast<int64_t>(elements),
               "counts do not add up to the buffer");
}

template <class T>
void HostCommunicator::all_reduce(std::span<T> data) {
  const int64_t n = static_cast<int64_t>(data.size());
  for (int r = 0; r < world_size(); ++r) {
    split_[r] = n / world_size() + (r < n % world_size() ? 1 : 0);
  }
  reduce_scatter(data, std::span<const int64_t>(split_));
  all_gather(data, split_);
}

template <class T>
T* HostCommunicator::scratch(int peer) const {
  return reinterpret_cast<T*>(static_cast<std::byte*>(scratch_.data()) + peer * slot_bytes_);
}

// An all-to-all of the pieces in rounds that fit into scratch, each followed by a local sum.
template <class T>
void HostCommunicator::reduce_scatter(std::span<T> data, std::span<const int64_t> counts) {
  set_pieces(counts, data.size());
  if (world_size() == 1) return;
  const int64_t step = slot_bytes_ / static_cast<int64_t>(sizeof(T));
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  for (int64_t begin = 0; begin < longest; begin += step) {
    sends_.clear();
    receives_.clear();
    const int64_t own = round_length(counts[rank()], begin, step);
    for (int i = 1; i < world_size(); ++i) {
      const int to = (rank() + i) % world_size();
      const int from = (rank() + world_size() - i) % world_size();
      const int64_t length = round_length(counts[to], begin, step);
      T* piece = data.data() + offsets_[to] + begin;
      if (length > 0) {
        sends_.push_back(
            {reinterpret_cast<std::byte*>(piece), length * static_cast<int64_t>(sizeof(T)), to});
      }
      if (own > 0) {
        receives_.push_back({reinterpret_cast<std::byte*>(scratch<T>(from)),
                             own * static_cast<int64_t>(sizeof(T)), from});
      }
    }
    exchange(sends_, receives_);
    if (own > 0) sum_in_rank_order(data.data() + offsets_[rank()] + begin, own);
  }
}

template <class T>
void HostCommunicator::sum_in_rank_order(T* own, int64_t n) {
  constexpr int64_t kBlock = 1024;  // a running sum that stays in the first-level cache
  parallel_for(n, 16 * kBlock, [&](int64_t begin, int64_t end) {
    T sum[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t length = std::min(kBlock, end - i);
      for (int r = 0; r < world_size(); ++r) {
        const T* x = (r == rank() ? own : scratch<T>(r)) + i;
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

void HostCommunicator::gather(std::byte* data, std::span<const int64_t> counts,
                              int64_t element_size) {
  if (world_size() == 1) return;
  const int64_t longest = *std::max_element(counts.begin(), counts.end()) * element_size;
  for (int64_t begin = 0; begin < longest; begin += limits_.message_bytes) {
    sends_.clear();
    receives_.clear();
    const auto piece = [&](int r, int peer) {
      const int64_t bytes = round_length(counts[r] * element_size, begin, limits_.message_bytes);
      return Message{data + offsets_[r] * element_size + begin, bytes, peer};
    };
    for (int i = 1; i < world_size(); ++i) {
      const int to = (rank() + i) % world_size();
      const int from = (rank() + world_size() - i) % world_size();
      const Message send = piece(rank(), to), receive = piece(from, from);
      if (send.bytes > 0) sends_.push_back(send);
      if (receive.bytes > 0) receives_.push_back(receive);
    }
    exchange(sends_, receives_);
  }
}

}  // namespace heddle
