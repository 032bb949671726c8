#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "framework/comm/service_thread.h"
#include "framework/comm/store.h"
#include "framework/comm/store_connector.h"
#include "framework/comm/store_wire.h"

namespace heddle {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace store_wire;
using Kind = StoreError::Kind;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kMaxReplyBytes = 512u << 20;
// The store ends a wait itself; its answer may need this much longer.
constexpr Seconds kAnswerMargin(5.0);

Clock::duration to_duration(Seconds s) {
  return std::chrono::duration_cast<Clock::duration>(std::min(s, Seconds(1e8)));
}

// One request on its way.
struct Pending {
  std::condition_variable done_changed;
  bool done = false;
  std::string reply;  // status and results
};

}  // namespace

class StoreClient::Impl {
 public:
  Impl(std::vector<Endpoint> endpoints, const StoreIdentity& identity, const Options& options)
      : call_timeout_(options.call_timeout), socket_(io_) {
    StoreConnector connector(io_, std::move(endpoints), identity, options);
    connector.connect();
    socket_ = std::move(connector.socket());
    endpoint_ = connector.endpoint();
    peer_address_ = connector.peer_address();
    own_address_ = connector.own_address();
    io_.restart();
    read_header();
    thread_ = start_service_thread([this] {
      const auto keep = asio::make_work_guard(io_);
      io_.run();
    });
  }

  ~Impl() {
    asio::post(io_, [this] {
      error_code ignored;
      socket_.close(ignored);
      io_.stop();
    });
    thread_.join();
  }

  // Sends a request and returns the results of its reply.
  std::string call(Op op, std::string operands, Seconds timeout, Status* status) {
    const auto pending = std::make_shared<Pending>();
    uint32_t id = 0;
    {
      const std::lock_guard lock(mutex_);
      throw_if_lost();
      id = next_id_++;
      pending_.emplace(id, pending);
    }
    Writer w;
    w.u32(0);
    w.u32(id);
    w.u8(static_cast<uint8_t>(op));
    w.raw(operands);
    w.patch_length(0);
    if (static_cast<int64_t>(w.size()) - 4 > StoreLimits().message_bytes) {
      forget(id);
      throw StoreError(Kind::kLimit,
                       fmt::format("A request to the rendezvous store: got {} bytes, at most {}",
                                   w.size() - 4, StoreLimits().message_bytes));
    }
    asio::post(io_, [this, bytes = w.take()]() mutable {
      outbox_.push_back(std::move(bytes));
      if (outbox_.size() == 1) write();
    });
    std::unique_lock lock(mutex_);
    const bool answered = pending->done_changed.wait_until(
        lock, Clock::now() + to_duration(timeout), [&] { return pending->done || !lost_.empty(); });
    pending_.erase(id);
    if (!pending->done) {
      throw_if_lost();
      HEDDLE_CHECK(!answered, "woken without cause");
      throw StoreError(Kind::kNoAnswer,
                       fmt::format("Rank 0's rendezvous store at {} does not answer for {} s",
                                   where(), timeout.count()),
                       "Rank 0 is frozen or its host is cut off: see its log");
    }
    lock.unlock();
    Reader r(pending->reply);
    *status = static_cast<Status>(r.u8());
    const std::string_view results = std::string_view(pending->reply).substr(1);
    if (*status == Status::kRefused || *status == Status::kLimit) {
      throw StoreError(
          *status == Status::kLimit ? Kind::kLimit : Kind::kRefused,
          fmt::format("The rendezvous store refused a request: {}", Reader(results).string()));
    }
    return std::string(results);
  }

  Seconds or_default(Timeout timeout) const { return timeout.value_or(call_timeout_); }

  void leave() {
    {
      const std::lock_guard lock(mutex_);
      if (leaving_ || !lost_.empty()) return;
      leaving_ = true;
    }
    Status status;
    call(Op::kLeave, {}, Seconds(2.0), &status);
  }

  std::string lost() const {
    const std::lock_guard lock(mutex_);
    return leaving_ ? std::string() : lost_;
  }

  void on_lost(std::function<void(const std::string&)> callback) {
    {
      const std::lock_guard lock(mutex_);
      if (lost_.empty()) {
        callback_ = std::move(callback);
        return;
      }
      if (leaving_) return;
    }
    callback(lost_);
  }

  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& peer_address() const { return peer_address_; }
  const std::string& own_address() const { return own_address_; }

 private:
  std::string where() const {
    return endpoint_.host == peer_address_
               ? to_string(endpoint_)
               : fmt::format("{} ({})", to_string(endpoint_), peer_address_);
  }

  void forget(uint32_t id) {
    const std::lock_guard lock(mutex_);
    pending_.erase(id);
  }

  // Under mutex_.
  void throw_if_lost() const {
    if (lost_.empty()) return;
    throw StoreError(Kind::kLost, lost_,
                     "Rank 0 has ended or its host is cut off: see its log; the last checkpoint "
                     "can be resumed");
  }

  void write() {
    asio::async_write(socket_, asio::buffer(outbox_.front()), [this](error_code error, size_t) {
      outbox_.pop_front();
      if (error) return fail(error);
      if (!outbox_.empty()) write();
    });
  }

  void read_header() {
    header_.resize(4);
    asio::async_read(socket_, asio::buffer(header_), [this](error_code error, size_t) {
      if (error) return fail(error);
      const uint32_t length = Reader(header_).u32();
      if (length < 5 || length > kMaxReplyBytes) return fail(asio::error::message_size);
      body_.resize(length);
      asio::async_read(socket_, asio::buffer(body_), [this](error_code e, size_t) {
        if (e) return fail(e);
        deliver();
        read_header();
      });
    });
  }

  void deliver() {
    const uint32_t id = Reader(body_).u32();
    const std::lock_guard lock(mutex_);
    const auto it = pending_.find(id);
    if (it == pending_.end()) return;  // came after its deadline
    it->second->reply = body_.substr(4);
    it->second->done = true;
    it->second->done_changed.notify_all();
  }

  void fail(error_code error) {
    if (error == asio::error::operation_aborted) return;
    std::function<void(const std::string&)> callback;
    std::string what;
    {
      const std::lock_guard lock(mutex_);
      if (!lost_.empty()) return;
      lost_ = what =
          fmt::format("Rank 0 is lost: its rendezvous store at {} closed the connection ({})",
                      where(), error == asio::error::eof ? "end of stream" : error.message());
      for (const auto& [id, pending] : pending_) pending->done_changed.notify_all();
      if (!leaving_) callback = std::move(callback_);
    }
    error_code ignored;
    socket_.close(ignored);
    if (callback) callback(what);
  }

  const Seconds call_timeout_;
  asio::io_context io_{1};
  tcp::socket socket_;
  Endpoint endpoint_;
  std::string peer_address_, own_address_;
  std::deque<std::string> outbox_;
  std::string header_, body_;

  mutable std::mutex mutex_;
  uint32_t next_id_ = 1;
  std::unordered_map<uint32_t, std::shared_ptr<Pending>> pending_;
  std::string lost_;
  bool leaving_ = false;
  std::function<void(const std::string&)> callback_;

  std::thread thread_;
};

StoreClient::StoreClient(std::vector<Endpoint> endpoints, const StoreIdentity& identity,
                         const Options& options)
    : impl_(std::make_unique<Impl>(std::move(endpoints), identity, options)) {}
StoreClient::~StoreClient() = default;

void StoreClient::set(std::string_view key, std::string_view value, Timeout timeout) {
  Writer w;
  w.string(key);
  w.string(value);
  Status status;
  impl_->call(Op::kSet, w.take(), impl_->or_default(timeout), &status);
}

std::optional<std::string> StoreClient::get(std::string_view key, Timeout timeout) {
  Writer w;
  w.string(key);
  Status status;
  const std::string results = impl_->call(Op::kGet, w.take(), impl_->or_default(timeout), &status);
  if (status == Status::kMissing) return {};
  return std::string(Reader(results).string());
}

std::string StoreClient::wait(std::string_view key, Timeout timeout) {
  const std::string keys[] = {std::string(key)};
  return wait(std::span<const std::string>(keys), timeout).front();
}

std::vector<std::string> StoreClient::wait(std::span<const std::string> keys, Timeout timeout) {
  const Seconds time = impl_->or_default(timeout);
  Writer w;
  w.u64(static_cast<uint64_t>(std::clamp(time.count() * 1000, 0.0, 1e11)));
  w.u32(static_cast<uint32_t>(keys.size()));
  for (const std::string& key : keys) w.string(key);
  Status status;
  const std::string results = impl_->call(Op::kWait, w.take(), time + kAnswerMargin, &status);
  Reader r(results);
  std::vector<std::string> values;
  const size_t n = status == Status::kMissing ? r.u32() : keys.size();
  for (size_t i = 0; i < n && r.ok(); ++i) values.emplace_back(r.string());
  if (status != Status::kMissing) return values;
  const size_t shown = std::min<size_t>(values.size(), 8);
  throw StoreError(
      Kind::kTimeout,
      fmt::format("Waited {} s for {} of {} keys in the rendezvous store: {}{}", time.count(),
                  values.size(), keys.size(),
                  fmt::join(values.begin(), values.begin() + static_cast<int64_t>(shown), ", "),
                  shown < values.size() ? ", ..." : ""),
      "Some rank has not come this far: see the logs of all ranks");
}

int64_t StoreClient::add(std::string_view key, int64_t delta, Timeout timeout) {
  Writer w;
  w.string(key);
  w.i64(delta);
  Status status;
  return Reader(impl_->call(Op::kAdd, w.take(), impl_->or_default(timeout), &status)).i64();
}

std::string StoreClient::compare_and_set(std::string_view key,
                                         std::optional<std::string_view> expected,
                                         std::string_view value, Timeout timeout) {
  Writer w;
  w.string(key);
  w.u8(expected.has_value());
  w.string(expected.value_or(std::string_view()));
  w.string(value);
  Status status;
  const std::string results =
      impl_->call(Op::kCompareSet, w.take(), impl_->or_default(timeout), &status);
  return std::string(Reader(results).string());
}

std::map<std::string, std::string> StoreClient::scan(std::string_view prefix, Timeout timeout) {
  Writer w;
  w.string(prefix);
  Status status;
  const std::string results = impl_->call(Op::kScan, w.take(), impl_->or_default(timeout), &status);
  std::map<std::string, std::string> found;
  for (Reader r(results); r.ok() && !r.done();) {
    std::string key(r.string());
    std::string value(r.string());
    if (r.ok()) found.emplace(std::move(key), std::move(value));
  }
  return found;
}

void StoreClient::erase(std::string_view key, Timeout timeout) {
  Writer w;
  w.string(key);
  Status status;
  impl_->call(Op::kErase, w.take(), impl_->or_default(timeout), &status);
}

std::vector<MemberState> StoreClient::members(Timeout timeout) {
  Status status;
  const std::string results = impl_->call(Op::kMembers, {}, impl_->or_default(timeout), &status);
  std::vector<MemberState> states;
  for (Reader r(results); r.ok() && !r.done();) states.push_back(static_cast<MemberState>(r.u8()));
  return states;
}

void StoreClient::leave() {
  impl_->leave();
}

std::string StoreClient::lost() const {
  return impl_->lost();
}
void StoreClient::on_lost(std::function<void(const std::string& what)> callback) {
  impl_->on_lost(std::move(callback));
}
const Endpoint& StoreClient::endpoint() const {
  return impl_->endpoint();
}
std::string StoreClient::peer_address() const {
  return impl_->peer_address();
}
std::string StoreClient::own_address() const {
  return impl_->own_address();
}

}  // namespace heddle
