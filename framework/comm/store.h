// The rendezvous store: a small key-value service over TCP through which the ranks of one job find
// each other, agree and watch each other. Rank 0's process serves it; every rank, rank 0 too, is a
// client. IPv4 and IPv6.
//
// Who may join: a peer that says hello in our protocol, with the same job id, restart count, world
// size and token, and a rank that nobody else holds. Everyone else is refused; a peer that speaks
// the protocol is told why. Peers that say nothing, nonsense or too much are closed, and never keep
// the store from serving the others.
//
// The token keeps out strangers and accidents on a network that others use too. It travels as
// plain text and nothing is encrypted: on a network where others can listen, use a tunnel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/error.h"

namespace heddle {

using Seconds = std::chrono::duration<double>;

// What must be the same in all processes of a job, and the place of this one among them.
struct StoreIdentity {
  std::string job_id;
  int64_t restart_count = 0;
  int world_size = 1;
  int rank = 0;
  std::string token;  // HEDDLE_STORE_TOKEN; empty: none. Never in a message or log.
};

// A failed store operation, exit code 6. `kind` says what a caller can do about it.
class StoreError : public Error {
 public:
  enum class Kind {
    kUnreachable,  // no connection came about before the deadline
    kRefused,      // the store answered and refused this process
    kTimeout,      // the store is fine, but the keys did not appear before the deadline
    kNoAnswer,     // connected, but no answer before the deadline: rank 0 is frozen or cut off
    kLost,         // the connection is gone: rank 0's process has ended or closed it
    kLimit,        // a key, value or the whole store is larger than allowed
  };
  StoreError(Kind kind, std::string message, std::string remedy = {});
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// What became of the process of a rank, as the server sees it.
enum class MemberState : uint8_t {
  kAbsent = 0,  // has not joined
  kJoined = 1,
  kLeft = 2,  // said goodbye
  kLost = 3,  // its connection broke without a goodbye: the process has ended or was cut off
};

struct StoreLimits {
  int64_t message_bytes = 4 << 20;  // one request
  int64_t store_bytes = 256 << 20;  // all keys and values
  int unknown_peers = 128;          // connections that have not said a valid hello; the oldest
                                    // is closed for a new one
  Seconds hello_time{5.0};          // time to say it
  int64_t pending_per_peer = 4096;  // requests of one peer that wait for keys
  int64_t unread_bytes = 64 << 20;  // answers that a peer does not read before it is closed
};

struct Endpoint {
  std::string host;  // name or address; IPv6 without brackets
  int port = 0;
  bool operator==(const Endpoint&) const = default;
};
// "n1:29500", "[fd00::1]:29500".
std::string to_string(const Endpoint& endpoint);

class StoreServer {
 public:
  // Listens on `addresses` (numeric, IPv4 and IPv6 mixed, no wildcard needed or added) at one port;
  // port 0: a free one. Serves on a thread of its own until destroyed. `identity.rank` is not used.
  // Throws comm_error when the port stays in use for `bind_retry`, or an address is not ours.
  StoreServer(const std::vector<std::string>& addresses, int port, const StoreIdentity& identity,
              const StoreLimits& limits = {}, Seconds bind_retry = Seconds(2.0));
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const;
  std::vector<Endpoint> endpoints() const;
  // One per rank.
  std::vector<MemberState> members() const;
  // Why peers were refused, newest last, at most 16; for the report of a rendezvous that failed.
  std::vector<std::string> refusals() const;
  // Waits until no rank is joined any more: rank 0 calls it before it takes the store away.
  // False: some still were after `timeout`.
  bool wait_until_left(Seconds timeout) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Thread-safe; requests of several threads do not wait for each other. Every call throws StoreError
// kLost once the connection is gone; a client never reconnects, since a store that came back would
// be empty. `timeout` of a call: kNoAnswer when the store does not answer in it.
class StoreClient {
 public:
  struct Options {
    Seconds connect_timeout{600.0};  // all tries together
    Seconds try_timeout{2.0};        // connecting to one address
    // Failures that look final (another job answers, the name does not resolve, something that is
    // no store answers) are tried again for this long: a store that is about to end, a name that
    // is about to appear.
    Seconds final_failure_grace{10.0};
    Seconds call_timeout{30.0};  // of calls that name none
  };

  // Connects: tries all addresses of all endpoints in turn until the deadline. Several endpoints:
  // the same store, of which some may be out of reach from here.
  StoreClient(std::vector<Endpoint> endpoints, const StoreIdentity& identity,
              const Options& options);
  StoreClient(const Endpoint& endpoint, const StoreIdentity& identity, const Options& options)
      : StoreClient(std::vector<Endpoint>{endpoint}, identity, options) {}
  StoreClient(const Endpoint& endpoint, const StoreIdentity& identity)
      : StoreClient(endpoint, identity, Options()) {}
  // Without leave(): the store counts this rank as lost.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  using Timeout = std::optional<Seconds>;  // nullopt: options.call_timeout

  void set(std::string_view key, std::string_view value, Timeout timeout = {});
  std::optional<std::string> get(std::string_view key, Timeout timeout = {});
  // Waits until all keys are there. Throws kTimeout, naming the missing ones, after `timeout`.
  std::string wait(std::string_view key, Timeout timeout = {});
  std::vector<std::string> wait(std::span<const std::string> keys, Timeout timeout = {});
  // Adds to a counter (0 when missing) and returns the sum. Throws kRefused when the key holds
  // something that is no counter.
  int64_t add(std::string_view key, int64_t delta, Timeout timeout = {});
  // Sets `key` to `value` if it holds `expected` (nullopt: is missing). Returns what the key holds
  // afterwards (nothing when it is missing): `value` means done.
  std::string compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                              std::string_view value, Timeout timeout = {});
  // All keys that begin with `prefix`: heartbeats of all ranks in one call.
  std::map<std::string, std::string> scan(std::string_view prefix, Timeout timeout = {});
  void erase(std::string_view key, Timeout timeout = {});
  std::vector<MemberState> members(Timeout timeout = {});

  // Goodbye: this rank leaves in good order and the client can only be destroyed.
  void leave();

  // Not empty once the connection is gone: what was seen of it.
  std::string lost() const;
  // Called once, on the client's thread, when the connection is gone (not after leave()). Must not
  // call the client. Called at once when it is gone already.
  void on_lost(std::function<void(const std::string& what)> callback);

  const Endpoint& endpoint() const;  // of those given the one that answered
  std::string peer_address() const;  // numeric address and port that answered
  std::string own_address() const;   // numeric address of this side: the source towards rank 0

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace heddle
