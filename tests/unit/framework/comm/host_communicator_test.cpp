// HostCommunicator with ranks as threads of this process, which hand messages over by pointer.
#include "framework/comm/host_communicator.h"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <thread>

#include "framework/core/parallel_for.h"
#include "tests/distributed/communicator_checks.h"

namespace heddle {
namespace {

// What the ranks of one "job" share: where each wants to read from.
struct Job {
  explicit Job(int ranks) : world(ranks), outboxes(ranks), barrier(ranks) {}
  int world;
  std::vector<std::vector<Message>> outboxes;
  std::barrier<> barrier;
  std::atomic<int64_t> longest_message{0};
};

class ThreadCommunicator : public HostCommunicator {
 public:
  ThreadCommunicator(Job* job, int rank, const MessageLimits& limits)
      : HostCommunicator(RankInfo{rank, job->world, rank, job->world}, limits), job_(job) {}

  std::string_view backend() const override { return "threads"; }
  std::string description() const override { return "threads"; }
  void barrier() override { job_->barrier.arrive_and_wait(); }
  void finish() override {}

 protected:
  // All ranks take part in every round, with or without a message.
  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    job_->outboxes[rank()].assign(sends.begin(), sends.end());
    job_->barrier.arrive_and_wait();
    for (const Message& to : receives) {
      for (const Message& from : job_->outboxes[to.peer]) {
        if (from.peer != rank()) continue;
        EXPECT_EQ(from.bytes, to.bytes);
        std::memcpy(to.data, from.data, to.bytes);
        job_->longest_message = std::max(job_->longest_message.load(), to.bytes);
      }
    }
    job_->barrier.arrive_and_wait();
  }

  void broadcast_message(std::byte* data, int64_t bytes, int root) override {
    if (rank() == root) job_->outboxes[root] = {Message{data, bytes, root}};
    job_->barrier.arrive_and_wait();
    if (rank() != root) std::memcpy(data, job_->outboxes[root].front().data, bytes);
    job_->barrier.arrive_and_wait();
  }

 private:
  Job* job_;
};

void on_all_ranks(Job* job, const MessageLimits& limits,
                  const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < job->world; ++r) {
    threads.emplace_back([=, &limits, &body] {
      ThreadCommunicator comm(job, r, limits);
      body(comm);
    });
  }
  for (auto& t : threads) t.join();
}

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
