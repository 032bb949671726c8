// What every communicator with several ranks must do; called by all ranks with a communicator each.
// Values are functions of (rank, index), so that each rank computes the right answer by itself.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/core/error.h"

namespace heddle::testing {

// Needs all its bits, differs wildly in size between ranks: any other order of summation shows.
template <class T>
T awkward(int rank, int64_t i) {
  const double value = std::sin(1.0 + 3.7 * rank + 0.01 * static_cast<double>(i));
  return static_cast<T>(std::ldexp(value, static_cast<int>((7 * rank + i) % 23)));
}

template <class T>
T rank_order_sum(int world, int64_t i) {
  T sum = awkward<T>(0, i);
  for (int r = 1; r < world; ++r) sum += awkward<T>(r, i);
  return sum;
}

template <class T>
std::vector<T> awkward_buffer(int rank, int64_t n) {
  std::vector<T> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = awkward<T>(rank, i);
  return x;
}

// Where the buffers of the checks live: the host's memory, or a device's.
class CheckMemory {
 public:
  virtual ~CheckMemory() = default;
  virtual std::shared_ptr<void> allocate(size_t bytes) {
    return std::shared_ptr<void>(::operator new(bytes), [](void* p) { ::operator delete(p); });
  }
  virtual void write(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  virtual void read(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  // Until what waits for finished operations is over, too.
  virtual void settle() {}
};

template <class T>
class CheckBuffer {
 public:
  CheckBuffer(CheckMemory& memory, const std::vector<T>& values)
      : memory_(memory), size_(values.size()) {
    if (size_ == 0) return;
    data_ = memory.allocate(size_ * sizeof(T));
    memory.write(data_.get(), values.data(), size_ * sizeof(T));
  }
  std::span<T> span() const { return {static_cast<T*>(data_.get()), size_}; }
  std::vector<T> values() const {
    std::vector<T> values(size_);
    if (size_ > 0) memory_.read(values.data(), data_.get(), size_ * sizeof(T));
    return values;
  }

 private:
  CheckMemory& memory_;
  size_t size_;
  std::shared_ptr<void> data_;
};

// Splits with uneven, zero and all-in-one pieces.
inline std::vector<std::vector<int64_t>> count_tables(int world) {
  std::vector<std::vector<int64_t>> tables(5);
  for (int r = 0; r < world; ++r) {
    tables[0].push_back(4);
    tables[1].push_back(3 * r + 1);
    tables[2].push_back(r % 2 == 0 ? 0 : 17);
    tables[3].push_back(r == world - 1 ? 1000 : 0);
    tables[4].push_back(0);
  }
  tables.push_back(even_counts(20011, world));
  return tables;
}

template <class T>
void check_reduce_scatter(Communicator& comm, CheckMemory& memory) {
  for (const auto& counts : count_tables(comm.world_size())) {
    int64_t total = 0, own_begin = 0, own_end = 0;
    for (int r = 0; r < comm.world_size(); ++r) {
      if (r == comm.rank()) own_begin = total;
      total += counts[r];
      if (r == comm.rank()) own_end = total;
    }
    const CheckBuffer<T> buffer(memory, awkward_buffer<T>(comm.rank(), total));
    comm.reduce_scatter_sum(buffer.span(), counts);
    const std::vector<T> x = buffer.values();
    int64_t wrong = 0;
    for (int64_t i = 0; i < total; ++i) {
      const bool own = i >= own_begin && i < own_end;
      const T want = own ? rank_order_sum<T>(comm.world_size(), i) : awkward<T>(comm.rank(), i);
      wrong += std::memcmp(&x[i], &want, sizeof(T)) != 0;
    }
    EXPECT_EQ(wrong, 0) << "of " << total << " on rank " << comm.rank();
  }
}

template <class T>
void check_all_reduce(Communicator& comm, CheckMemory& memory) {
  for (const int64_t n : {0, 1, 2, 7, 1000, 20011}) {
    const CheckBuffer<T> buffer(memory, awkward_buffer<T>(comm.rank(), n));
    comm.all_reduce_sum(buffer.span());
    const std::vector<T> x = buffer.values();
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const T want = rank_order_sum<T>(comm.world_size(), i);
      wrong += std::memcmp(&x[i], &want, sizeof(T)) != 0;
    }
    EXPECT_EQ(wrong, 0) << "of " << n << " on rank " << comm.rank();
  }
}

template <class T>
void check_all_gather(Communicator& comm, CheckMemory& memory) {
  for (const auto& counts : count_tables(comm.world_size())) {
    std::vector<T> x, want;
    for (int r = 0; r < comm.world_size(); ++r) {
      for (int64_t i = 0; i < counts[r]; ++i) {
        want.push_back(awkward<T>(r, i));
        x.push_back(r == comm.rank() ? awkward<T>(r, i) : T{-1});
      }
    }
    const CheckBuffer<T> buffer(memory, x);
    comm.all_gather(buffer.span(), counts);
    EXPECT_EQ(buffer.values(), want) << "on rank " << comm.rank();
  }
}

// Several operations under way at once, waited for late, early or never polled.
inline void check_overlap(Communicator& comm, CheckMemory& memory) {
  const int world = comm.world_size();
  constexpr int kOperations = 6;
  for (const bool polls : {false, true}) {
    std::vector<CheckBuffer<float>> buffers;
    std::vector<std::vector<int64_t>> counts;
    std::vector<Work> works;
    for (int k = 0; k < kOperations; ++k) {
      const int64_t n = 101 * k + 7;
      buffers.emplace_back(memory, awkward_buffer<float>(comm.rank(), n));
      counts.push_back(even_counts(n, world));
    }
    for (int k = 0; k < kOperations; ++k) {
      works.push_back(comm.start_reduce_scatter_sum(buffers[k].span(), counts[k]));
      works.push_back(comm.start_all_gather(buffers[k].span(), counts[k]));
    }
    if (polls) {
      for (int i = 0; i < 10 * comm.rank(); ++i) works.back().poll();
    }
    works[3].wait();
    memory.settle();
    EXPECT_TRUE(works[0].poll());
    EXPECT_TRUE(works[3].poll());
    // Blocking operations keep their place in the order.
    EXPECT_EQ(comm.all_reduce_sum(int64_t{1}), world);
    EXPECT_TRUE(works.back().poll());
    EXPECT_FALSE(comm.poll());
    works.back().wait();
    for (int k = 0; k < kOperations; ++k) {
      int64_t wrong = 0;
      const std::vector<float> x = buffers[k].values();
      for (size_t i = 0; i < x.size(); ++i) {
        wrong += x[i] != rank_order_sum<float>(world, static_cast<int64_t>(i));
      }
      EXPECT_EQ(wrong, 0) << "operation " << k << " on rank " << comm.rank();
    }
  }
  Work().wait();
  EXPECT_TRUE(Work().poll());
}

// Every place of the buffer says which rank and index it came from: one byte out of place shows.
inline void check_integer_pattern(Communicator& comm, CheckMemory& memory) {
  const int world = comm.world_size();
  const auto counts = even_counts(10007, world);
  std::vector<double> x(10007);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * 1000 + comm.rank());
  const CheckBuffer<double> buffer(memory, x);
  comm.reduce_scatter_sum(buffer.span(), counts);
  comm.all_gather(buffer.span(), counts);
  x = buffer.values();
  int64_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    wrong += x[i] != static_cast<double>(world * i * 1000 + world * (world - 1) / 2);
  }
  EXPECT_EQ(wrong, 0) << "on rank " << comm.rank();
}

inline void check_broadcast(Communicator& comm) {
  for (int root = 0; root < comm.world_size(); ++root) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{33}, size_t{5000}}) {
      const std::string want(size, static_cast<char>('a' + root));
      std::string text = comm.rank() == root ? want : "something else of another length";
      comm.broadcast(&text, root);
      EXPECT_EQ(text, want) << "on rank " << comm.rank();
    }
  }
}

inline void check_single_values(Communicator& comm) {
  const int world = comm.world_size(), rank = comm.rank();
  EXPECT_EQ(comm.all_reduce_sum(int64_t{1} << rank), (int64_t{1} << world) - 1);
  EXPECT_EQ(comm.all_reduce_max(int64_t{-5} - rank), -5);
  EXPECT_EQ(comm.all_reduce_max(std::numeric_limits<int64_t>::min() + rank),
            std::numeric_limits<int64_t>::min() + world - 1);
  double sum = awkward<double>(0, 3);
  for (int r = 1; r < world; ++r) sum += awkward<double>(r, 3);
  EXPECT_EQ(comm.all_reduce_sum(awkward<double>(rank, 3)), sum);
  EXPECT_EQ(comm.all_reduce_max(rank == 0 ? 2.5 : -1.0), 2.5);
  EXPECT_TRUE(std::isnan(comm.all_reduce_max(rank == world - 1 ? std::nan("") : 7.0)));

  const auto texts = comm.all_gather_strings(std::string(rank * 3, 'x') + std::to_string(rank));
  ASSERT_EQ(texts.size(), static_cast<size_t>(world));
  for (int r = 0; r < world; ++r) EXPECT_EQ(texts[r], std::string(r * 3, 'x') + std::to_string(r));
}

inline void check_collectives_in(CheckMemory& memory, Communicator& comm) {
  check_reduce_scatter<float>(comm, memory);
  check_reduce_scatter<double>(comm, memory);
  check_all_reduce<float>(comm, memory);
  check_all_reduce<double>(comm, memory);
  check_all_gather<float>(comm, memory);
  check_all_gather<double>(comm, memory);
  check_overlap(comm, memory);
  check_integer_pattern(comm, memory);
  check_broadcast(comm);
  check_single_values(comm);
  comm.barrier();
}

inline void check_collectives(Communicator& comm) {
  CheckMemory host;
  check_collectives_in(host, comm);
}

// main() of a rank: `run` gets the first argument; an error ends the job with its code.
inline int main_of_rank(int argc, char** argv, int (*run)(const std::string& mode)) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return run(argc > 1 ? argv[1] : "");
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    abort_job(static_cast<int>(e.code()));
  }
}

// All ranks run the tests, rank 0 prints, and all fail when one does. Ends with finish().
inline int run_tests_together(Communicator& comm) {
  if (comm.rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int64_t failed = comm.all_reduce_max(static_cast<int64_t>(RUN_ALL_TESTS() != 0));
  if (failed != 0 && comm.rank() == 0) std::fprintf(stderr, "some rank failed\n");
  comm.finish();
  return static_cast<int>(failed);
}

}  // namespace heddle::testing
