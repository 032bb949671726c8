// HostCommunicator with ranks as threads of this process, which put messages into mailboxes.
#include "framework/comm/host_communicator.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "framework/core/parallel_for.h"
#include "tests/distributed/communicator_checks.h"

namespace heddle {
namespace {

// What the ranks of one "job" share: the messages under way from each rank to each other.
struct Job {
  explicit Job(int ranks) : world(ranks), mail(ranks * ranks) {}
  int world;
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::deque<std::vector<std::byte>>> mail;
  int64_t longest_message = 0, bytes = 0;
};

class ThreadCommunicator : public HostCommunicator {
 public:
  ThreadCommunicator(Job* job, int rank, const MessageLimits& limits)
      : HostCommunicator(RankInfo{rank, job->world, rank, job->world}, limits), job_(job) {}

  std::string_view backend() const override { return "threads"; }
  std::string description() const override { return "threads"; }
  void finish() override {}

 protected:
  void start_exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    const std::lock_guard lock(job_->mutex);
    for (const Message& m : sends) {
      job_->mail[rank() * world_size() + m.peer].emplace_back(m.data, m.data + m.bytes);
      job_->longest_message = std::max(job_->longest_message, m.bytes);
      job_->bytes += m.bytes;
    }
    job_->arrived.notify_all();
    missing_.assign(receives.begin(), receives.end());
    patience_ = (rank() + 1) % 3;  // ranks see their messages at different polls
  }

  bool test_exchange() override {
    if (patience_-- > 0) return false;
    const std::lock_guard lock(job_->mutex);
    return take_arrived();
  }

  void wait_exchange() override {
    std::unique_lock lock(job_->mutex);
    job_->arrived.wait(lock, [this] { return take_arrived(); });
  }

 private:
  bool take_arrived() {
    std::vector<Message> missing;
    for (const Message& m : missing_) {
      auto& box = job_->mail[m.peer * world_size() + rank()];
      if (box.empty()) {
        missing.push_back(m);
        continue;
      }
      EXPECT_EQ(static_cast<int64_t>(box.front().size()), m.bytes);
      std::memcpy(m.data, box.front().data(), box.front().size());
      box.pop_front();
    }
    missing_ = std::move(missing);
    return missing_.empty();
  }

  Job* job_;
  std::vector<Message> missing_;
  int patience_ = 0;
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
