#include "framework/comm/net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

namespace heddle {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

AddressList look_up(const std::string& host, int flags, int* error) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  // A port is needed to connect; any will do.
  *error = getaddrinfo(host.c_str(), "9", &hints, &list);
  return {*error == 0 ? list : nullptr, freeaddrinfo};
}

}  // namespace

Resolved resolve_host(const std::string& host) {
  Resolved result;
  if (host.empty()) {
    result.error = "empty name";
    return result;
  }
  int error = 0;
  const AddressList list = look_up(host, 0, &error);
  if (error != 0) {
    result.error = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return result;
  }
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    const std::string text = numeric(a->ai_addr, a->ai_addrlen);
    auto& all = result.addresses;
    if (!text.empty() && std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  }
  if (result.addresses.empty()) result.error = "no IPv4 or IPv6 address";
  return result;
}

std::vector<OwnAddress> own_addresses() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, freeifaddrs);
  std::vector<OwnAddress> all;
  for (const ifaddrs* a = list.get(); a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || (a->ifa_flags & IFF_UP) == 0) continue;
    const int family = a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const bool loopback = (a->ifa_flags & IFF_LOOPBACK) != 0;
    all.push_back({a->ifa_name, numeric(a->ifa_addr, length), loopback});
  }
  return all;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

bool is_own_address(const std::string& address) {
  if (is_loopback(address)) return true;
  for (const OwnAddress& own : own_addresses()) {
    if (own.address == address) return true;
  }
  return false;
}

std::string source_address_towards(const std::string& address) {
  int error = 0;
  const AddressList list = look_up(address, AI_NUMERICHOST, &error);
  if (error != 0) return {};
  const int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  std::string source;
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (connect(fd, list->ai_addr, list->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    source = numeric(reinterpret_cast<const sockaddr*>(&own), length);
  }
  close(fd);
  return source;
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown host";
  return name;
}

std::string host_id() {
  std::string id = host_name(), boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = {};
  const ssize_t n = readlink("/proc/self/ns/net", network, sizeof(network) - 1);
  return id + " " + boot + " " + std::string(network, n > 0 ? static_cast<size_t>(n) : 0);
}

}  // namespace heddle
