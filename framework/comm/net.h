// Names, addresses and interfaces of hosts, both families.
#pragma once

#include <string>
#include <vector>

namespace heddle {

struct Resolved {
  std::vector<std::string> addresses;  // numeric, in the resolver's order, no duplicates
  std::string error;                   // not empty: why there are none
};

// Addresses of a name; a numeric address is its own. Asks for both families.
Resolved resolve_host(const std::string& host);

struct OwnAddress {
  std::string interface;
  std::string address;  // numeric; link-local IPv6 with %interface
  bool loopback = false;
};

// Addresses of this host's interfaces that are up.
std::vector<OwnAddress> own_addresses();

// Is `address` (numeric) one of them? All of 127.0.0.0/8 is.
bool is_own_address(const std::string& address);
bool is_loopback(const std::string& address);

// The address from which this host sends to `address`: where the peer can answer it. Empty when
// there is no route. No packet is sent.
std::string source_address_towards(const std::string& address);

// This host's name, for messages.
std::string host_name();

// The same for processes that share a network stack, different for others: tells ranks of one host
// from ranks of several, whatever their names.
std::string host_id();

}  // namespace heddle
