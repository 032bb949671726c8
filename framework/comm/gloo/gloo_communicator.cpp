#include "framework/comm/gloo/gloo_communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gloo/config.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "framework/comm/service_thread.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds to_milliseconds(Seconds s) {
  return std::chrono::duration_cast<milliseconds>(s);
}

// Gloo's messages begin with file and line of its source.
std::string without_position(const std::string& text) {
  if (!text.starts_with("[")) return text;
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

// Gloo's rendezvous over ours.
class GlooStore : public ::gloo::rendezvous::Store {
 public:
  GlooStore(StoreClient* store, std::string prefix, Seconds timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(prefix_ + key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->wait(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, to_milliseconds(timeout_));
  }
  // Gloo's own timeout is that of a connection; the job's is meant here.
  void wait(const std::vector<std::string>& keys, const milliseconds&) override {
    std::vector<std::string> all;
    for (const std::string& key : keys) all.push_back(prefix_ + key);
    store_->wait(all, timeout_);
  }

 private:
  StoreClient* store_;
  std::string prefix_;
  Seconds timeout_;
};

// Names what the store knows beside what Gloo saw.
Error broken(Rendezvous& rendezvous, const std::string& what) {
  std::string lost;
  try {
    std::vector<int> ranks;
    const auto members = rendezvous.store().members(Seconds(2.0));
    for (size_t r = 0; r < members.size(); ++r) {
      if (members[r] == MemberState::kLost) ranks.push_back(static_cast<int>(r));
    }
    if (!ranks.empty()) {
      lost = fmt::format(". Lost are, as rank 0's store sees it: rank {}", fmt::join(ranks, ", "));
    }
  } catch (const StoreError& e) {
    lost = fmt::format(". {}", e.message());
  }
  return comm_error(what + lost,
                    "See what the other ranks say first; the last checkpoint can be resumed");
}

void wait_for_everybody(Rendezvous& rendezvous, const std::string& prefix) {
  rendezvous.store().set(prefix + std::to_string(rendezvous.rank()), "");
  std::vector<std::string> keys;
  for (int r = 0; r < rendezvous.world_size(); ++r) keys.push_back(prefix + std::to_string(r));
  rendezvous.store().wait(keys, rendezvous.timeout());
}

std::shared_ptr<::gloo::rendezvous::Context> connect(Rendezvous& rendezvous) {
  const int rank = rendezvous.rank();
  auto context = std::make_shared<::gloo::rendezvous::Context>(rank, rendezvous.world_size());
  // Gloo waits five times as long for a connection.
  context->setTimeout(to_milliseconds(std::max(rendezvous.timeout() / 5, Seconds(1.0))));
  try {
    ::gloo::transport::tcp::attr attributes;
    attributes.hostname = rendezvous.own_address();
    auto device = ::gloo::transport::tcp::CreateDevice(attributes);
    const std::string group = rendezvous.next_group();
    GlooStore store(&rendezvous.store(), group + "gloo/", rendezvous.timeout());
    context->connectFullMesh(store, device);
    // Gloo ends the process when a peer closes a connection that is not yet complete on this side.
    wait_for_everybody(rendezvous, group + "connected/");
  } catch (const std::exception& e) {
    if (dynamic_cast<const Error*>(&e) != nullptr) throw;
    throw broken(rendezvous,
                 fmt::format("Rank {} (Gloo at {}) cannot connect to all ranks: {}", rank,
                             rendezvous.own_address(), without_position(e.what())));
  }
  return context;
}

class GlooCommunicator : public HostCommunicator {
 public:
  GlooCommunicator(std::shared_ptr<Rendezvous> rendezvous, const RankInfo& info,
                   std::unique_ptr<Communicator> parent, const MessageLimits& limits)
      : HostCommunicator(info, limits),
        rendezvous_(std::move(rendezvous)),
        parent_(std::move(parent)),
        context_(connect(*rendezvous_)),
        sent_(info.world_size, 0),
        received_(info.world_size, 0),
        waiter_(start_service_thread([this] { wait_on_request(); })) {}

  ~GlooCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      state_ = State::kEnd;
      changed_.notify_all();
    }
    // It may wait for a peer that will never answer.
    context_->closeConnections();
    waiter_.join();
  }

  std::string_view backend() const override { return "gloo"; }
  std::string description() const override {
    return fmt::format("gloo {}.{}.{} (TCP from {}), rank {} of {}, local {} of {}",
                       GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH,
                       rendezvous_->own_address(), rank(), world_size(), local_rank(),
                       local_size());
  }

  // The barrier lets nobody close a connection that another rank still reads from.
  void finish() override {
    barrier();
    rendezvous_->leave();
    if (parent_) parent_->finish();
  }

 protected:
  void start_exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    pending_.clear();
    deadline_ = Clock::now() + to_milliseconds(rendezvous_->data_timeout());
    for (const Message& m : receives) post(m, true);
    for (const Message& m : sends) post(m, false);
  }

  // Gloo can only be waited for, and a wait that times out closes all connections. So a thread
  // waits, from the first test on.
  bool test_exchange() override {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kIdle) {
      state_ = State::kWaiting;
      changed_.notify_all();
    }
    if (state_ == State::kWaiting) return false;
    finish_exchange();
    return true;
  }

  void wait_exchange() override {
    std::unique_lock lock(mutex_);
    if (state_ == State::kIdle) {
      lock.unlock();
      failure_ = wait_for_pending();
    } else {
      changed_.wait(lock, [this] { return state_ == State::kDone; });
    }
    finish_exchange();
  }

 private:
  enum class State { kIdle, kWaiting, kDone, kEnd };

  struct Pending {
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
    int peer = 0;
    bool receives = false;
  };

  // The n-th message from a rank to another has slot 2n or 2n + 1, by direction.
  void post(const Message& m, bool receives) {
    Pending& p = pending_.emplace_back();
    p.peer = m.peer;
    p.receives = receives;
    const int from = receives ? m.peer : rank(), to = receives ? rank() : m.peer;
    uint64_t& count = receives ? received_[m.peer] : sent_[m.peer];
    const uint64_t slot = 2 * count++ + (from < to ? 0 : 1);
    try {
      p.buffer = context_->createUnboundBuffer(m.data, static_cast<size_t>(m.bytes));
      receives ? p.buffer->recv(m.peer, slot) : p.buffer->send(m.peer, slot);
    } catch (const std::exception& e) {
      throw broken(*rendezvous_, problem(p, e));
    }
  }

  std::string problem(const Pending& p, const std::exception& e) const {
    const std::string what = without_position(e.what());
    const bool late = what.starts_with("Timed out");
    return fmt::format(
        "Rank {} {} rank {}{}: {}", rank(), p.receives ? "waits for data from" : "has data for",
        p.peer,
        late ? fmt::format(", nothing within {} s", rendezvous_->data_timeout().count())
             : "",
        what);
  }

  // Returns the problem.
  std::optional<std::string> wait_for_pending() {
    for (const Pending& p : pending_) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
      const auto time = std::max(left, milliseconds(1));
      try {
        p.receives ? p.buffer->waitRecv(nullptr, time) : p.buffer->waitSend(nullptr, time);
      } catch (const std::exception& e) {
        return problem(p, e);
      }
    }
    return {};
  }

  // Under mutex_, or while no thread waits.
  void finish_exchange() {
    state_ = State::kIdle;
    pending_.clear();
    if (failure_) throw broken(*rendezvous_, *std::exchange(failure_, {}));
  }

  void wait_on_request() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return state_ == State::kWaiting || state_ == State::kEnd; });
      if (state_ == State::kEnd) return;
      lock.unlock();
      auto failure = wait_for_pending();
      lock.lock();
      if (state_ == State::kEnd) return;
      failure_ = std::move(failure);
      state_ = State::kDone;
      changed_.notify_all();
    }
  }

  std::shared_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Communicator> parent_;
  std::shared_ptr<::gloo::rendezvous::Context> context_;
  std::vector<uint64_t> sent_, received_;  // messages to and from each rank
  std::vector<Pending> pending_;           // of the exchange under way
  Clock::time_point deadline_;

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;
  std::optional<std::string> failure_;
  std::thread waiter_;
};

}  // namespace

bool gloo_available() {
  return true;
}

std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous,
                                                     const LaunchContext& launch,
                                                     std::unique_ptr<Communicator> parent,
                                                     const MessageLimits& limits) {
  const RankInfo info{launch.rank, launch.world_size, launch.local_rank, launch.local_size};
  return std::make_unique<GlooCommunicator>(std::move(rendezvous), info, std::move(parent), limits);
}

}  // namespace heddle
