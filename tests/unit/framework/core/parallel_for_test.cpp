#include "framework/core/parallel_for.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace heddle {
namespace {

// Also run by ctest under OMP_THREAD_LIMIT=1, where a team is smaller than was asked for.
class Parallel : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_num_threads(GetParam()); }
  void TearDown() override { set_num_threads(0); }
};

struct Piece {
  int64_t begin, end;
  int worker;
};

std::vector<Piece> pieces_of(int64_t n, int64_t grain) {
  std::mutex mutex;
  std::vector<Piece> pieces;
  parallel_for(n, grain, [&](int64_t begin, int64_t end, int worker) {
    const std::lock_guard lock(mutex);
    pieces.push_back({begin, end, worker});
  });
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return pieces;
}

TEST_P(Parallel, ForCoversEveryIndexOnceInContiguousPieces) {
  for (const int64_t n : {0, 1, 2, 3, 5, 7, 16, 100, 1001}) {
    for (const int64_t grain : {0, 1, 2, 3, 64, 5000}) {
      int64_t at = 0;
      for (const Piece& p : pieces_of(n, grain)) {
        EXPECT_EQ(p.begin, at);
        EXPECT_LT(p.begin, p.end);
        EXPECT_LT(p.worker, num_threads());
        EXPECT_GE(p.end - p.begin, std::min(grain, n));
        at = p.end;
      }
      EXPECT_EQ(at, n) << "grain " << grain;
    }
  }
}

TEST_P(Parallel, PiecesAreTheSameEveryTime) {
  const auto first = pieces_of(1000, 1);
  EXPECT_EQ(static_cast<int>(first.size()), GetParam());
  for (int round = 0; round < 20; ++round) {
    const auto again = pieces_of(1000, 1);
    ASSERT_EQ(again.size(), first.size());
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(again[i].begin, first[i].begin);
      EXPECT_EQ(again[i].worker, first[i].worker);
      EXPECT_EQ(first[i].worker, static_cast<int>(i));
    }
  }
}

TEST_P(Parallel, NestedCallsRunInlineAsTheirWorker) {
  std::atomic<int64_t> sum{0};
  std::atomic<int> wrong{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      parallel_for(100, 1, [&](int64_t b, int64_t e, int inner) {
        wrong += b != 0 || e != 100 || inner != worker;
        sum += e - b;
      });
      parallel_tasks(3, [&](int64_t, int inner) { wrong += inner != worker; });
    }
  });
  EXPECT_EQ(sum, 800);
  EXPECT_EQ(wrong, 0);
}

TEST_P(Parallel, TasksRunOnceEach) {
  for (const int64_t n : {0, 1, 2, 17, 300}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
    std::atomic<int> bad_worker{0};
    parallel_tasks(n, [&](int64_t task, int worker) {
      ++runs[static_cast<size_t>(task)];
      bad_worker += worker < 0 || worker >= num_threads();
    });
    for (const auto& r : runs) EXPECT_EQ(r, 1);
    EXPECT_EQ(bad_worker, 0);
    std::atomic<int64_t> count{0};
    parallel_tasks(n, [&](int64_t) { ++count; });
    EXPECT_EQ(count, n);
  }
}

TEST_P(Parallel, AParallelLoopWorksAfterANestedOne) {
  parallel_for(4, 1, [](int64_t, int64_t) { parallel_for(4, 1, [](int64_t, int64_t) {}); });
  EXPECT_EQ(static_cast<int>(pieces_of(64, 1).size()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, ::testing::Values(1, 2, 3, 4));

TEST(NumThreads, ZeroMeansWhatTheProcessMayUse) {
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), available_processors());
  EXPECT_GE(available_processors(), 1);
}

}  // namespace
}  // namespace heddle
