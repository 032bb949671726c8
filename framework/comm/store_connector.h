// Connects a StoreClient: all addresses in turn, hello and its answer, again until the deadline.
#pragma once

#include <boost/asio.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "framework/comm/store.h"
#include "framework/comm/store_wire.h"

namespace heddle {

class StoreConnector {
 public:
  using Clock = std::chrono::steady_clock;

  // Runs `io` while it waits; nothing else may run it meanwhile.
  StoreConnector(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
                 const StoreIdentity& identity, const StoreClient::Options& options);

  // Throws StoreError.
  void connect();

  // Of the connection that came about.
  boost::asio::ip::tcp::socket& socket() { return socket_; }
  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& peer_address() const { return peer_address_; }
  const std::string& own_address() const { return own_address_; }

 private:
  struct Failure {
    StoreError::Kind kind = StoreError::Kind::kUnreachable;
    std::string message, remedy;
    bool final = false;    // waiting will hardly help
    bool at_once = false;  // waiting cannot help
  };

  bool try_all(Failure* failure);
  // Returns the problem.
  std::string try_connect(const std::string& address);
  // Hello and its answer. False: refused (kind kRefused) or no such store.
  bool greet(Failure* failure);
  // Reads the answer to the hello. Returns the problem.
  std::string exchange_hello(Failure* failure, std::string* answer);
  void explain_refusal(store_wire::Verdict verdict, const std::string& reason, Failure* failure);
  // Runs what was started on io_ until it is done or time is up; then closes the socket.
  bool run_until(Clock::time_point deadline, const bool& done);
  // Starts a transfer and waits for it. Returns the problem.
  template <class F>
  std::string transfer(Clock::time_point deadline, F start);

  boost::asio::io_context& io_;
  const std::vector<Endpoint> endpoints_;
  const StoreIdentity identity_;
  const StoreClient::Options options_;
  const uint64_t instance_;
  boost::asio::ip::tcp::socket socket_;
  Endpoint endpoint_;  // that is tried
  std::string peer_address_, own_address_;
};

}  // namespace heddle
