#include "framework/comm/host_communicator.h"

#include <gtest/gtest.h>

#include "framework/core/parallel_for.h"
#include "tests/distributed/communicator_checks.h"
#include "tests/unit/support/thread_communicator.h"

namespace heddle {
namespace {

using testing::Job;
using testing::on_all_ranks;

class HostCommunicatorTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_num_threads(1); }
  void TearDown() override { set_num_threads(0); }
};

TEST_P(HostCommunicatorTest, Collectives) {
  Job job(GetParam());
  on_all_ranks(&job, MessageLimits{}, testing::check_collectives);
}

TEST_P(HostCommunicatorTest, MessagesStayWithinTheirLimit) {
  for (const MessageLimits limits : {MessageLimits{400, 1 << 20}, MessageLimits{1 << 20, 1000}}) {
    Job job(GetParam());
    on_all_ranks(&job, limits, testing::check_collectives);
    EXPECT_LE(job.longest_message, limits.message_bytes);
  }
}

TEST_P(HostCommunicatorTest, CountsTheBytesItHandsOver) {
  const int world = GetParam();
  Job job(world);
  std::vector<int64_t> counts;
  for (int r = 0; r < world; ++r) counts.push_back(5000 * r);
  const int64_t total = 5000 * world * (world - 1) / 2;
  std::vector<int64_t> sent(world);
  on_all_ranks(&job, MessageLimits{400, 1 << 20}, [&](Communicator& comm) {
    std::vector<float> x(total);
    comm.reduce_scatter_sum(std::span<float>(x), counts);
    comm.all_gather(std::span<float>(x), counts);
    sent[comm.rank()] = comm.counters().bytes_sent;
    EXPECT_GT(comm.counters().seconds_in_flight, 0.0);
    EXPECT_GT(comm.counters().seconds_inside, 0.0);
  });
  int64_t all = 0;
  for (int r = 0; r < world; ++r) {
    EXPECT_EQ(sent[r], 4 * (total - counts[r] + (world - 1) * counts[r])) << "rank " << r;
    all += sent[r];
  }
  EXPECT_EQ(all, job.bytes);
}

TEST(HostCommunicator, SumsDoNotDependOnThreads) {
  std::vector<float> results[2];
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    Job job(3);
    on_all_ranks(&job, MessageLimits{}, [&](Communicator& comm) {
      auto x = testing::awkward_buffer<float>(comm.rank(), 200003);
      comm.all_reduce_sum(std::span<float>(x));
      if (comm.rank() == 1) results[threads - 1] = x;
    });
  }
  set_num_threads(0);
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostCommunicatorTest, ::testing::Values(2, 3, 4, 5));

}  // namespace
}  // namespace heddle
