#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <unordered_map>

#include "framework/comm/net.h"
#include "framework/comm/service_thread.h"
#include "framework/comm/store.h"
#include "framework/comm/store_wire.h"

namespace heddle {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace store_wire;

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);

std::chrono::steady_clock::duration to_duration(Seconds s) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(s);
}

// One connection.
struct Peer {
  explicit Peer(tcp::socket s) : socket(std::move(s)), hello_timer(socket.get_executor()) {}

  tcp::socket socket;
  asio::steady_timer hello_timer;
  int rank = -1;  // -1: has not said a valid hello
  uint64_t instance = 0;
  bool left = false, closed = false, writing = false, close_when_written = false;
  std::deque<std::string> outbox;
  int64_t outbox_bytes = 0;
  int64_t pending = 0;

  void close() {
    if (closed) return;
    closed = true;
    error_code ignored;
    hello_timer.cancel();
    socket.close(ignored);
  }
};
using PeerPtr = std::shared_ptr<Peer>;

// A request that waits for keys.
struct Waiter {
  Waiter(PeerPtr p, uint32_t i) : peer(std::move(p)), id(i), timer(peer->socket.get_executor()) {}
  PeerPtr peer;
  uint32_t id;
  std::vector<std::string> keys;
  size_t missing = 0;
  bool done = false;
  asio::steady_timer timer;
};
using WaiterPtr = std::shared_ptr<Waiter>;

Writer reply(uint32_t id, Status status) {
  Writer w;
  w.u32(0);
  w.u32(id);
  w.u8(static_cast<uint8_t>(status));
  return w;
}

}  // namespace

class StoreServer::Impl {
 public:
  Impl(const std::vector<std::string>& addresses, int port, const StoreIdentity& identity,
       const StoreLimits& limits, Seconds bind_retry)
      : identity_(identity),
        limits_(limits),
        states_(identity.world_size, MemberState::kAbsent),
        holders_(identity.world_size) {
    HEDDLE_CHECK(!addresses.empty(), "no address to listen on");
    HEDDLE_CHECK(port >= 0 && port <= 65535, "no such port");
    const auto deadline = std::chrono::steady_clock::now() + to_duration(bind_retry);
    for (;;) {
      const std::string problem = listen(addresses, port);
      if (problem.empty()) break;
      acceptors_.clear();
      if (std::chrono::steady_clock::now() >= deadline) {
        throw StoreError(StoreError::Kind::kUnreachable, problem,
                         "Another job may use this port: choose another one (dist.master_port or "
                         "MASTER_PORT), or end that job (ss -ltnp shows who listens)");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    for (tcp::acceptor& acceptor : acceptors_) {
      asio::co_spawn(io_, accept(acceptor), asio::detached);
    }
    thread_ = start_service_thread([this] { io_.run(); });
  }

  ~Impl() {
    asio::post(io_, [this] {
      for (const PeerPtr& peer : peers_) peer->close();
      io_.stop();
    });
    thread_.join();
  }

  int port() const { return port_; }
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }

  std::vector<MemberState> members() const {
    const std::lock_guard lock(mutex_);
    return states_;
  }
  std::vector<std::string> refusals() const {
    const std::lock_guard lock(mutex_);
    return {refusals_.begin(), refusals_.end()};
  }
  bool wait_until_left(Seconds timeout) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, to_duration(timeout), [this] {
      return std::find(states_.begin(), states_.end(), MemberState::kJoined) == states_.end();
    });
  }

 private:
  // Binds all addresses to one port. Returns the problem.
  std::string listen(const std::vector<std::string>& addresses, int port) {
    port_ = port;
    endpoints_.clear();
    for (const std::string& text : addresses) {
      error_code error;
      const auto address = asio::ip::make_address(text, error);
      if (error) return fmt::format("'{}' is not a numeric address", text);
      tcp::acceptor acceptor(io_);
      const tcp::endpoint at(address, static_cast<uint16_t>(port_));
      acceptor.open(at.protocol(), error);
      if (!error && address.is_v6()) acceptor.set_option(asio::ip::v6_only(true), error);
      // Sockets of a run that has just ended must not block the port. Never SO_REUSEPORT: it
      // shares the port with another job.
      if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
      if (!error) fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
      if (!error) acceptor.bind(at, error);
      if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
      if (error) {
        return fmt::format("Cannot listen on {} for the rendezvous store: {}",
                           to_string(Endpoint{text, port_}), error.message());
      }
      port_ = acceptor.local_endpoint().port();
      endpoints_.push_back({text, port_});
      acceptors_.push_back(std::move(acceptor));
    }
    return {};
  }

  asio::awaitable<void> accept(tcp::acceptor& acceptor) {
    for (;;) {
      auto [error, socket] = co_await acceptor.async_accept(kToken);
      if (error) {
        if (!acceptor.is_open()) co_return;
        // Out of descriptors, most likely: make room and go on.
        close_oldest_unknown();
        asio::steady_timer pause(io_, std::chrono::milliseconds(50));
        co_await pause.async_wait(kToken);
        continue;
      }
      fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      socket.set_option(tcp::no_delay(true), error);
      const auto peer = std::make_shared<Peer>(std::move(socket));
      peers_.push_back(peer);
      unknown_.push_back(peer);
      if (static_cast<int>(unknown_.size()) > limits_.unknown_peers + identity_.world_size) {
        close_oldest_unknown();
      }
      asio::co_spawn(io_, serve(peer), asio::detached);
    }
  }

  void close_oldest_unknown() {
    if (unknown_.empty()) return;
    const PeerPtr oldest = unknown_.front();
    unknown_.pop_front();
    oldest->close();
  }

  asio::awaitable<void> serve(PeerPtr peer) {
    peer->hello_timer.expires_after(to_duration(limits_.hello_time));
    peer->hello_timer.async_wait([peer](error_code error) {
      if (!error && peer->rank < 0) peer->close();
    });
    const bool joined = co_await greet(peer);
    unknown_.remove(peer);
    if (joined) {
      co_await serve_requests(peer);
      gone(peer);
    }
    // A refusal may still be on its way out.
    if (!peer->writing) peer->close();
    peers_.remove(peer);
  }

  // Reads the hello and answers. True: the peer is in.
  asio::awaitable<bool> greet(PeerPtr peer) {
    std::string bytes(kPreambleBytes, '\0');
    auto [error, n] = co_await asio::async_read(peer->socket, asio::buffer(bytes), kToken);
    if (error) co_return false;
    const Preamble preamble = decode_preamble(bytes);
    if (!preamble.ours || preamble.length > kMaxHelloBytes) co_return false;
    std::string body(preamble.length, '\0');
    std::tie(error, n) = co_await asio::async_read(peer->socket, asio::buffer(body), kToken);
    if (error) co_return false;
    Hello hello;
    std::string reason;
    Verdict verdict = Verdict::kMalformed;
    if (preamble.version != kProtocolVersion) {
      verdict = Verdict::kOtherVersion;
      reason = fmt::format("this store speaks version {} of the protocol, got version {}",
                           kProtocolVersion, preamble.version);
    } else if (decode_hello(body, &hello)) {
      verdict = judge(hello, &reason);
    }
    if (verdict == Verdict::kWelcome) {
      admit(peer, hello);
    } else {
      note_refusal(peer, reason);
      peer->close_when_written = true;
    }
    send(peer, encode_answer(verdict, reason));
    co_return verdict == Verdict::kWelcome;
  }

  Verdict judge(const Hello& hello, std::string* reason) {
    const StoreIdentity& got = hello.identity;
    // Before anything is said about the job.
    if (!equal_in_constant_time(got.token, identity_.token)) {
      *reason = got.token.empty() ? "this store wants a token (HEDDLE_STORE_TOKEN), got none"
                : identity_.token.empty() ? "this store has no token, got one (HEDDLE_STORE_TOKEN)"
                                          : "the tokens (HEDDLE_STORE_TOKEN) differ";
      return Verdict::kToken;
    }
    if (got.job_id != identity_.job_id) {
      *reason = fmt::format("this store serves job '{}', got job '{}'", printable(identity_.job_id),
                            printable(got.job_id));
      return Verdict::kOtherJob;
    }
    if (got.restart_count != identity_.restart_count) {
      *reason =
          fmt::format("this store serves restart {} of job '{}', got restart {}",
                      identity_.restart_count, printable(identity_.job_id), got.restart_count);
      return got.restart_count < identity_.restart_count ? Verdict::kStalePeer
                                                         : Verdict::kStaleServer;
    }
    if (got.world_size != identity_.world_size) {
      *reason = fmt::format("rank 0 counts {} ranks, got {} from rank {}", identity_.world_size,
                            got.world_size, got.rank);
      return Verdict::kWorldSize;
    }
    if (got.rank < 0 || got.rank >= identity_.world_size) {
      *reason = fmt::format("got rank {}, expected 0 to {}", got.rank, identity_.world_size - 1);
      return Verdict::kRank;
    }
    const PeerPtr& holder = holders_[got.rank];
    if (holder && holder->instance != hello.instance) {
      *reason = fmt::format("another process {} rank {}", holder->closed ? "was" : "is", got.rank);
      return Verdict::kDuplicate;
    }
    return Verdict::kWelcome;
  }

  void admit(const PeerPtr& peer, const Hello& hello) {
    peer->rank = hello.identity.rank;
    peer->instance = hello.instance;
    peer->hello_timer.cancel();
    PeerPtr& holder = holders_[peer->rank];
    if (holder) holder->close();  // the same process tries again: it has given that connection up
    holder = peer;
    set_state(peer->rank, MemberState::kJoined);
  }

  void gone(const PeerPtr& peer) {
    if (holders_[peer->rank] != peer) return;
    set_state(peer->rank, peer->left ? MemberState::kLeft : MemberState::kLost);
  }

  void set_state(int rank, MemberState state) {
    const std::lock_guard lock(mutex_);
    states_[rank] = state;
    changed_.notify_all();
  }

  void note_refusal(const PeerPtr& peer, const std::string& reason) {
    error_code error;
    const auto from = peer->socket.remote_endpoint(error);
    const std::lock_guard lock(mutex_);
    refusals_.push_back(fmt::format("{}: {}", error ? "?" : from.address().to_string(), reason));
    if (refusals_.size() > 16) refusals_.pop_front();
  }

  asio::awaitable<void> serve_requests(PeerPtr peer) {
    std::string header(4, '\0'), body;
    while (!peer->closed && !peer->left) {
      auto [error, n] = co_await asio::async_read(peer->socket, asio::buffer(header), kToken);
      if (error) co_return;
      const uint32_t length = Reader(header).u32();
      // What follows cannot be skipped safely, so the connection ends here.
      if (length > limits_.message_bytes) co_return;
      body.resize(length);
      std::tie(error, n) = co_await asio::async_read(peer->socket, asio::buffer(body), kToken);
      if (error) co_return;
      if (!handle(peer, body)) co_return;
    }
  }

  // False: malformed.
  bool handle(const PeerPtr& peer, std::string_view body) {
    Reader r(body);
    const uint32_t id = r.u32();
    switch (static_cast<Op>(r.u8())) {
      case Op::kSet: {
        const std::string_view key = r.string(), value = r.string();
        if (!r.done()) return false;
        if (put(peer, id, key, value)) send(peer, reply(id, Status::kOk));
        return true;
      }
      case Op::kGet: {
        const auto found = table_.find(std::string(r.string()));
        if (!r.done()) return false;
        Writer w = reply(id, found == table_.end() ? Status::kMissing : Status::kOk);
        if (found != table_.end()) w.string(found->second);
        send(peer, std::move(w));
        return true;
      }
      case Op::kWait:
        return wait(peer, id, r);
      case Op::kAdd:
        return add(peer, id, r);
      case Op::kCompareSet:
        return compare_set(peer, id, r);
      case Op::kScan:
        return scan(peer, id, r);
      case Op::kErase: {
        const auto found = table_.find(std::string(r.string()));
        if (!r.done()) return false;
        if (found != table_.end()) {
          bytes_ -= static_cast<int64_t>(found->first.size() + found->second.size());
          table_.erase(found);
        }
        send(peer, reply(id, Status::kOk));
        return true;
      }
      case Op::kMembers: {
        if (!r.done()) return false;
        Writer w = reply(id, Status::kOk);
        for (const MemberState s : members()) w.u8(static_cast<uint8_t>(s));
        send(peer, std::move(w));
        return true;
      }
      case Op::kLeave:
        if (!r.done()) return false;
        peer->left = true;
        peer->close_when_written = true;
        send(peer, reply(id, Status::kOk));
        return true;
    }
    return false;
  }

  // Stores and wakes those who wait. False: refused for its size, and answered.
  bool put(const PeerPtr& peer, uint32_t id, std::string_view key, std::string_view value) {
    auto it = table_.find(std::string(key));
    const int64_t before =
        it == table_.end() ? 0 : static_cast<int64_t>(key.size() + it->second.size());
    const int64_t after = bytes_ - before + static_cast<int64_t>(key.size() + value.size());
    if (after > limits_.store_bytes) {
      Writer w = reply(id, Status::kLimit);
      w.string(fmt::format("the store is full: {} bytes, at most {}", after, limits_.store_bytes));
      send(peer, std::move(w));
      return false;
    }
    bytes_ = after;
    if (it == table_.end()) {
      table_.emplace(key, value);
      wake(std::string(key));
    } else {
      it->second = value;
    }
    return true;
  }

  void wake(const std::string& key) {
    const auto [begin, end] = waiters_.equal_range(key);
    std::vector<WaiterPtr> ready;
    for (auto it = begin; it != end; ++it) {
      if (!it->second->done && --it->second->missing == 0) ready.push_back(it->second);
    }
    waiters_.erase(begin, end);
    for (const WaiterPtr& w : ready) {
      const auto erased = missing_of(*w);  // after they had come
      w->missing = erased.size();
      for (const std::string& missing : erased) waiters_.emplace(missing, w);
      if (erased.empty()) answer(w);
    }
  }

  bool wait(const PeerPtr& peer, uint32_t id, Reader& r) {
    const uint64_t milliseconds = std::min<uint64_t>(r.u64(), uint64_t{1} << 40);
    const uint32_t n = r.u32();
    if (!r.ok() || n > r.left() / 4) return false;
    const auto waiter = std::make_shared<Waiter>(peer, id);
    for (uint32_t i = 0; i < n; ++i) waiter->keys.emplace_back(r.string());
    if (!r.done()) return false;
    const std::vector<std::string> missing = missing_of(*waiter);
    waiter->missing = missing.size();
    if (missing.empty() || milliseconds == 0) {
      answer(waiter, false);
      return true;
    }
    if (peer->pending >= limits_.pending_per_peer) {
      Writer w = reply(id, Status::kLimit);
      w.string(fmt::format("{} requests of this rank wait already", peer->pending));
      send(peer, std::move(w));
      return true;
    }
    ++peer->pending;
    for (const std::string& key : missing) waiters_.emplace(key, waiter);
    waiter->timer.expires_after(std::chrono::milliseconds(milliseconds));
    waiter->timer.async_wait([this, waiter](error_code) {
      --waiter->peer->pending;
      if (waiter->done) return;
      for (const std::string& key : waiter->keys) forget(key, waiter);
      answer(waiter, false);
    });
    return true;
  }

  void forget(const std::string& key, const WaiterPtr& waiter) {
    const auto [begin, end] = waiters_.equal_range(key);
    for (auto it = begin; it != end;) it = it->second == waiter ? waiters_.erase(it) : ++it;
  }

  std::vector<std::string> missing_of(const Waiter& waiter) const {
    std::vector<std::string> missing;
    for (const std::string& key : waiter.keys) {
      if (table_.count(key) == 0) missing.push_back(key);
    }
    std::sort(missing.begin(), missing.end());  // a key that is named twice is waited for once
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    return missing;
  }

  void answer(const WaiterPtr& waiter, bool timed = true) {
    waiter->done = true;
    if (timed) waiter->timer.cancel();
    const auto missing = missing_of(*waiter);
    Writer w = reply(waiter->id, missing.empty() ? Status::kOk : Status::kMissing);
    if (missing.empty()) {
      for (const std::string& key : waiter->keys) w.string(table_.at(key));
    } else {
      w.u32(static_cast<uint32_t>(missing.size()));
      for (const std::string& key : missing) w.string(key);
    }
    send(waiter->peer, std::move(w));
  }

  bool add(const PeerPtr& peer, uint32_t id, Reader& r) {
    const std::string_view key = r.string();
    const int64_t delta = r.i64();
    if (!r.done()) return false;
    int64_t value = 0;
    if (const auto it = table_.find(std::string(key)); it != table_.end()) {
      const std::string& text = it->second;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) {
        Writer w = reply(id, Status::kRefused);
        w.string(fmt::format("'{}' holds no counter", printable(key)));
        send(peer, std::move(w));
        return true;
      }
    }
    value = static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(delta));
    if (!put(peer, id, key, std::to_string(value))) return true;
    Writer w = reply(id, Status::kOk);
    w.i64(value);
    send(peer, std::move(w));
    return true;
  }

  bool compare_set(const PeerPtr& peer, uint32_t id, Reader& r) {
    const std::string key(r.string());
    const bool has_expected = r.u8() != 0;
    const std::string_view expected = r.string(), value = r.string();
    if (!r.done()) return false;
    const auto it = table_.find(key);
    const bool equal = it == table_.end() ? !has_expected : has_expected && it->second == expected;
    if (equal && !put(peer, id, key, value)) return true;
    Writer w = reply(id, Status::kOk);
    const auto now = table_.find(key);
    w.string(now == table_.end() ? std::string_view() : std::string_view(now->second));
    send(peer, std::move(w));
    return true;
  }

  bool scan(const PeerPtr& peer, uint32_t id, Reader& r) {
    const std::string prefix(r.string());
    if (!r.done()) return false;
    Writer w = reply(id, Status::kOk);
    for (auto it = table_.lower_bound(prefix);
         it != table_.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
      w.string(it->first);
      w.string(it->second);
    }
    send(peer, std::move(w));
    return true;
  }

  void send(const PeerPtr& peer, Writer w) {
    w.patch_length(0);
    send(peer, w.take());
  }

  void send(const PeerPtr& peer, std::string bytes) {
    if (peer->closed) return;
    if (peer->outbox_bytes > limits_.unread_bytes) return peer->close();
    peer->outbox_bytes += static_cast<int64_t>(bytes.size());
    peer->outbox.push_back(std::move(bytes));
    if (!peer->writing) write(peer);
  }

  void write(const PeerPtr& peer) {
    peer->writing = true;
    asio::async_write(peer->socket, asio::buffer(peer->outbox.front()),
                      [this, peer](error_code error, size_t) {
                        peer->outbox_bytes -= static_cast<int64_t>(peer->outbox.front().size());
                        peer->outbox.pop_front();
                        peer->writing = false;
                        if (error) return peer->close();
                        if (!peer->outbox.empty()) return write(peer);
                        if (peer->close_when_written) peer->close();
                      });
  }

  const StoreIdentity identity_;
  const StoreLimits limits_;
  asio::io_context io_{1};
  int port_ = 0;
  std::vector<Endpoint> endpoints_;
  std::vector<tcp::acceptor> acceptors_;

  // Touched by the store's thread only.
  std::list<PeerPtr> peers_, unknown_;
  std::map<std::string, std::string> table_;
  int64_t bytes_ = 0;
  std::unordered_multimap<std::string, WaiterPtr> waiters_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<MemberState> states_;  // under mutex_
  std::vector<PeerPtr> holders_;     // of each rank, the store's thread only
  std::deque<std::string> refusals_;

  std::thread thread_;
};

StoreServer::StoreServer(const std::vector<std::string>& addresses, int port,
                         const StoreIdentity& identity, const StoreLimits& limits,
                         Seconds bind_retry)
    : impl_(std::make_unique<Impl>(addresses, port, identity, limits, bind_retry)) {}
StoreServer::~StoreServer() = default;

int StoreServer::port() const {
  return impl_->port();
}
std::vector<Endpoint> StoreServer::endpoints() const {
  return impl_->endpoints();
}
std::vector<MemberState> StoreServer::members() const {
  return impl_->members();
}
std::vector<std::string> StoreServer::refusals() const {
  return impl_->refusals();
}
bool StoreServer::wait_until_left(Seconds timeout) const {
  return impl_->wait_until_left(timeout);
}

}  // namespace heddle
