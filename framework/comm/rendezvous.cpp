#include "framework/comm/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "framework/comm/net.h"
#include "framework/core/error.h"

namespace heddle {
namespace {

bool on_several_hosts(const LaunchContext& launch) {
  return launch.local_size < launch.world_size;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

// Bridges and tunnels of this host alone; other hosts may have the same addresses.
bool is_virtual_interface(const std::string& name) {
  for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "flannel"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

bool is_link_local(const std::string& address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

// Addresses of the interface, or those that other hosts may reach, likely ones first.
std::vector<std::string> reachable(const std::vector<OwnAddress>& own,
                                   const std::string& interface) {
  std::vector<std::string> first, second, names;
  for (const OwnAddress& a : own) {
    if (!contains(names, a.interface)) names.push_back(a.interface);
    if (is_link_local(a.address)) continue;
    if (interface != "auto") {
      if (a.interface == interface) first.push_back(a.address);
    } else if (!a.loopback) {
      (is_virtual_interface(a.interface) ? second : first).push_back(a.address);
    }
  }
  if (interface != "auto" && first.empty()) {
    throw comm_error(fmt::format("dist.interface {}: not up, or without an address, on host {}; "
                                 "expected one of {}",
                                 interface, host_name(), fmt::join(names, ", ")),
                     "Name another interface, or set dist.interface: auto");
  }
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string random_token() {
  unsigned char bytes[16];
  HEDDLE_CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes), "no randomness");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string token_of_environment() {
  const char* token = std::getenv("HEDDLE_STORE_TOKEN");
  const std::string text = token == nullptr ? "" : token;
  if (text.size() > 1024) {
    throw comm_error(
        fmt::format("HEDDLE_STORE_TOKEN: got {} characters, expected at most 1024", text.size()),
        "Use a shorter secret");
  }
  return text;
}

// What tells a rank where the store is.
struct Meeting {
  std::vector<Endpoint> endpoints;
  std::unique_ptr<StoreServer> server;  // of rank 0
};

void require_endpoint(const LaunchContext& launch) {
  if (launch.master_addr.empty() || launch.master_port == 0) {
    throw comm_error(
        fmt::format("Nothing says where rank 0 is: got {} from [{}], expected an address and a "
                    "port",
                    launch.master_addr.empty() ? "no address" : "no port", launch.description()),
        "Set MASTER_ADDR and MASTER_PORT, or dist.master_addr and dist.master_port");
  }
}

// Every host takes these for itself.
bool is_loopback_name(const std::string& host) {
  return host == "localhost" || is_loopback(host);
}

// Ranks on other hosts cannot reach a loopback address; they find nobody, or somebody else.
Error loopback_error(const LaunchContext& launch, const Error& found) {
  return comm_error(
      fmt::format("{} is {}, which every host takes for itself, but {} of {} ranks are on other "
                  "hosts than rank {}'s. {}",
                  launch.origin.master_addr, launch.master_addr,
                  launch.world_size - launch.local_size, launch.world_size, launch.rank,
                  found.message()),
      "Set it to the name or address under which the other hosts know rank 0's");
}

Meeting meet_at_endpoint(const DistConfig& config, const LaunchContext& launch,
                         const StoreIdentity& identity) {
  require_endpoint(launch);
  Meeting meeting;
  meeting.endpoints = {{launch.master_addr, launch.master_port}};
  if (launch.rank != 0) return meeting;
  const Resolved resolved = resolve_host(launch.master_addr);
  if (!resolved.error.empty()) {
    throw comm_error(
        fmt::format("The address of rank 0 does not resolve: {} '{}' on host {}: {}",
                    launch.origin.master_addr, launch.master_addr, host_name(), resolved.error),
        "Set MASTER_ADDR (dist.master_addr) to a name that all hosts know, or to an "
        "address");
  }
  const auto addresses =
      addresses_to_announce(launch, config.interface, resolved.addresses, own_addresses());
  meeting.server = std::make_unique<StoreServer>(addresses, launch.master_port, identity);
  // Its own addresses: the name may mean something else first.
  meeting.endpoints = meeting.server->endpoints();
  return meeting;
}

// Rank 0 tells "port token address...".
Meeting meet_through(Communicator& through, const DistConfig& config, const LaunchContext& launch,
                     StoreIdentity* identity) {
  Meeting meeting;
  std::string text;
  if (launch.rank == 0) {
    if (identity->token.empty()) identity->token = random_token();
    std::vector<std::string> resolved;
    if (config.master_addr != "auto") resolved = resolve_host(config.master_addr).addresses;
    const auto addresses =
        addresses_to_announce(launch, config.interface, resolved, own_addresses());
    meeting.server = std::make_unique<StoreServer>(
        addresses, static_cast<int>(config.master_port.value_or(0)), *identity);
    text =
        fmt::format("{} {} {}", meeting.server->port(), identity->token, fmt::join(addresses, " "));
  }
  through.broadcast(&text, 0);
  std::istringstream in(text);
  int port = 0;
  in >> port >> identity->token;
  for (std::string address; in >> address;) meeting.endpoints.push_back({address, port});
  return meeting;
}

// Throws when some are missing at the deadline, naming them. Returns whether all share one host.
bool wait_for_all(StoreClient& store, StoreServer* server, const StoreIdentity& identity,
                  Seconds timeout) {
  const auto key = [](int rank) { return fmt::format("rendezvous/joined/{}", rank); };
  const std::string id = host_id();
  store.set(key(identity.rank), id, timeout);
  std::vector<std::string> keys;
  for (int r = 0; r < identity.world_size; ++r) keys.push_back(key(r));
  try {
    const auto ids = store.wait(keys, timeout);
    return std::all_of(ids.begin(), ids.end(), [&](const std::string& x) { return x == id; });
  } catch (const StoreError& e) {
    if (e.kind() != StoreError::Kind::kTimeout) throw;
    std::vector<int> missing;
    for (int r = 0; r < identity.world_size; ++r) {
      if (!store.get(keys[static_cast<size_t>(r)])) missing.push_back(r);
    }
    std::string refused;
    if (server != nullptr && !server->refusals().empty()) {
      refused = fmt::format(". Refused were: {}", fmt::join(server->refusals(), "; "));
    }
    throw StoreError(
        StoreError::Kind::kTimeout,
        fmt::format("{} of {} ranks have not come within {} s: {}{}", missing.size(),
                    identity.world_size, timeout.count(), fmt::join(missing, ", "), refused),
        "See the logs of these ranks; dist.timeout_s sets how long to wait");
  }
}

// The address under which the other ranks reach this one.
std::string choose_own_address(const DistConfig& config, StoreClient& store, bool one_host,
                               Seconds timeout) {
  const bool v6 = store.peer_address().find(':') != std::string::npos;
  if (config.interface != "auto") {
    const auto all = reachable(own_addresses(), config.interface);
    for (const std::string& a : all) {
      if ((a.find(':') != std::string::npos) == v6) return a;
    }
    return all.front();
  }
  if (one_host) return store.own_address();
  // Ranks beside rank 0 may have met it at a loopback address. Those of other hosts have not.
  const char* key = "rendezvous/address";
  if (!is_own_address(store.peer_address())) {
    store.compare_and_set(key, {}, store.peer_address(), timeout);
  }
  const std::string source = source_address_towards(store.wait(key, timeout));
  return source.empty() ? store.own_address() : source;
}

}  // namespace

std::vector<std::string> addresses_to_announce(const LaunchContext& launch,
                                               const std::string& interface,
                                               const std::vector<std::string>& resolved,
                                               const std::vector<OwnAddress>& own) {
  const bool several_hosts = on_several_hosts(launch);
  if (resolved.empty()) {
    if (!several_hosts && interface == "auto") return {"127.0.0.1"};
    auto all = reachable(own, interface);
    if (all.empty()) all = {"127.0.0.1"};
    return all;
  }
  std::vector<std::string> here, all;
  for (const OwnAddress& a : own) all.push_back(a.address);
  for (const std::string& a : resolved) {
    if (is_loopback(a) || contains(all, a)) here.push_back(a);
  }
  if (here.empty()) {
    throw comm_error(
        fmt::format("Rank 0 runs on host {} ({}), but {} is {} ({}), another host", host_name(),
                    fmt::join(all, ", "), launch.origin.master_addr, launch.master_addr,
                    fmt::join(resolved, ", ")),
        "Set it to this host, or start rank 0 there (torchrun --node_rank, the order of the host "
        "file)");
  }
  // Debian's host file gives a host's own name a loopback address, which no other host reaches.
  if (several_hosts && !is_loopback_name(launch.master_addr) &&
      std::all_of(here.begin(), here.end(), is_loopback)) {
    const auto others = reachable(own, interface);
    here.insert(here.end(), others.begin(), others.end());
  }
  return here;
}

Rendezvous::Rendezvous(std::unique_ptr<StoreServer> server, std::unique_ptr<StoreClient> client,
                       const StoreIdentity& identity, Seconds timeout, std::string own_address)
    : server_(std::move(server)),
      client_(std::move(client)),
      identity_(identity),
      timeout_(timeout),
      own_address_(std::move(own_address)) {}

Rendezvous::~Rendezvous() = default;

std::string Rendezvous::next_group() {
  return fmt::format("group/{}/", groups_++);
}

void Rendezvous::leave(Seconds patience) {
  if (left_) return;
  left_ = true;
  client_->leave();
  if (server_) server_->wait_until_left(patience);
}

std::shared_ptr<Rendezvous> meet(const DistConfig& config, const LaunchContext& launch,
                                 Communicator* through) {
  const Seconds timeout(config.timeout_s);
  StoreIdentity identity{.job_id = launch.job_id,
                         .restart_count = launch.restart_count,
                         .world_size = launch.world_size,
                         .rank = launch.rank,
                         .token = token_of_environment()};
  Meeting meeting = through != nullptr ? meet_through(*through, config, launch, &identity)
                                       : meet_at_endpoint(config, launch, identity);
  StoreClient::Options options;
  options.connect_timeout = timeout;
  options.call_timeout = timeout;
  const bool doubtful =
      through == nullptr && on_several_hosts(launch) && is_loopback_name(launch.master_addr);
  if (doubtful) options.connect_timeout = std::min(timeout, Seconds(30.0));
  std::unique_ptr<StoreClient> client;
  try {
    client = std::make_unique<StoreClient>(meeting.endpoints, identity, options);
  } catch (const StoreError& e) {
    if (doubtful && e.kind() == StoreError::Kind::kUnreachable) throw loopback_error(launch, e);
    throw;
  }
  const bool one_host = wait_for_all(*client, meeting.server.get(), identity, timeout);
  std::string own = choose_own_address(config, *client, one_host, timeout);
  return std::make_shared<Rendezvous>(std::move(meeting.server), std::move(client), identity,
                                      timeout, std::move(own));
}

}  // namespace heddle
