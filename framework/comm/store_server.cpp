#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>

#include "framework/comm/net.h"
#include "framework/comm/service_thread.h"
#include "framework/comm/store.h"
#include "framework/comm/store_peer.h"
#include "framework/comm/store_requests.h"
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
      for (const StorePeerPtr& peer : peers_) peer->close();
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
      const auto peer = std::make_shared<StorePeer>(std::move(socket), limits_.unread_bytes);
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
    const StorePeerPtr oldest = unknown_.front();
    unknown_.pop_front();
    oldest->close();
  }

  asio::awaitable<void> serve(StorePeerPtr peer) {
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
    peer->close_when_written();  // a refusal may still be on its way out
    peers_.remove(peer);
  }

  // Reads the hello and answers. True: the peer is in.
  asio::awaitable<bool> greet(StorePeerPtr peer) {
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
    }
    peer->send(encode_answer(verdict, reason));
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
    const StorePeerPtr& holder = holders_[got.rank];
    if (holder && holder->instance != hello.instance) {
      *reason =
          fmt::format("another process {} rank {}", holder->closed() ? "was" : "is", got.rank);
      return Verdict::kDuplicate;
    }
    return Verdict::kWelcome;
  }

  void admit(const StorePeerPtr& peer, const Hello& hello) {
    peer->rank = hello.identity.rank;
    peer->instance = hello.instance;
    peer->hello_timer.cancel();
    StorePeerPtr& holder = holders_[peer->rank];
    if (holder) holder->close();  // the same process tries again: it has given that connection up
    holder = peer;
    set_state(peer->rank, MemberState::kJoined);
  }

  void gone(const StorePeerPtr& peer) {
    if (holders_[peer->rank] != peer) return;
    set_state(peer->rank, peer->left ? MemberState::kLeft : MemberState::kLost);
  }

  void set_state(int rank, MemberState state) {
    const std::lock_guard lock(mutex_);
    states_[rank] = state;
    changed_.notify_all();
  }

  void note_refusal(const StorePeerPtr& peer, const std::string& reason) {
    error_code error;
    const auto from = peer->socket.remote_endpoint(error);
    const std::lock_guard lock(mutex_);
    refusals_.push_back(fmt::format("{}: {}", error ? "?" : from.address().to_string(), reason));
    if (refusals_.size() > 16) refusals_.pop_front();
  }

  asio::awaitable<void> serve_requests(StorePeerPtr peer) {
    std::string header(4, '\0'), body;
    while (!peer->closed() && !peer->left) {
      auto [error, n] = co_await asio::async_read(peer->socket, asio::buffer(header), kToken);
      if (error) co_return;
      const uint32_t length = Reader(header).u32();
      // What follows cannot be skipped safely, so the connection ends here.
      if (length > limits_.message_bytes) co_return;
      body.resize(length);
      std::tie(error, n) = co_await asio::async_read(peer->socket, asio::buffer(body), kToken);
      if (error) co_return;
      if (!requests_.handle(peer, body)) co_return;
    }
  }

  const StoreIdentity identity_;
  const StoreLimits limits_;
  asio::io_context io_{1};
  int port_ = 0;
  std::vector<Endpoint> endpoints_;
  std::vector<tcp::acceptor> acceptors_;

  // Touched by the store's thread only.
  std::list<StorePeerPtr> peers_, unknown_;
  StoreRequests requests_{limits_, [this] { return members(); }};

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<MemberState> states_;    // under mutex_
  std::vector<StorePeerPtr> holders_;  // of each rank, the store's thread only
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
