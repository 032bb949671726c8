// HostCommunicator with ranks as threads of this process, which put messages into mailboxes.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "framework/comm/host_communicator.h"

namespace heddle::testing {

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

inline void on_all_ranks(Job* job, const MessageLimits& limits,
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

}  // namespace heddle::testing
