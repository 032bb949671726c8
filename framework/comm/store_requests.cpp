#include "framework/comm/store_requests.h"

#include <fmt/format.h>

#include <algorithm>

namespace heddle {
namespace {

using boost::system::error_code;
using namespace store_wire;

Writer reply(uint32_t id, Status status) {
  Writer w;
  w.u32(0);
  w.u32(id);
  w.u8(static_cast<uint8_t>(status));
  return w;
}

}  // namespace

struct StoreRequests::Waiter {
  Waiter(StorePeerPtr p, uint32_t i)
      : peer(std::move(p)), id(i), timer(peer->socket.get_executor()) {}
  StorePeerPtr peer;
  uint32_t id;
  std::vector<std::string> keys;
  size_t missing = 0;
  bool done = false;
  boost::asio::steady_timer timer;
};

bool StoreRequests::handle(const StorePeerPtr& peer, std::string_view body) {
  Reader r(body);
  const uint32_t id = r.u32();
  switch (static_cast<Op>(r.u8())) {
    case Op::kSet: {
      const std::string key(r.string());
      const std::string_view value = r.string();
      if (!r.done()) return false;
      if (put(peer, id, key, value)) peer->send(reply(id, Status::kOk));
      return true;
    }
    case Op::kGet: {
      const std::string* value = table_.find(std::string(r.string()));
      if (!r.done()) return false;
      Writer w = reply(id, value == nullptr ? Status::kMissing : Status::kOk);
      if (value != nullptr) w.string(*value);
      peer->send(std::move(w));
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
      const std::string key(r.string());
      if (!r.done()) return false;
      table_.erase(key);
      peer->send(reply(id, Status::kOk));
      return true;
    }
    case Op::kMembers: {
      if (!r.done()) return false;
      Writer w = reply(id, Status::kOk);
      for (const MemberState s : members_()) w.u8(static_cast<uint8_t>(s));
      peer->send(std::move(w));
      return true;
    }
    case Op::kLeave:
      if (!r.done()) return false;
      peer->left = true;
      peer->send(reply(id, Status::kOk));
      peer->close_when_written();
      return true;
  }
  return false;
}

bool StoreRequests::put(const StorePeerPtr& peer, uint32_t id, const std::string& key,
                        std::string_view value) {
  const StoreTable::Put done = table_.put(key, value);
  if (done == StoreTable::Put::kNew) wake(key);
  if (done != StoreTable::Put::kFull) return true;
  refuse(peer, id, Status::kLimit,
         fmt::format("the store is full, it holds at most {} bytes", limits_.store_bytes));
  return false;
}

void StoreRequests::refuse(const StorePeerPtr& peer, uint32_t id, Status status,
                           const std::string& reason) {
  Writer w = reply(id, status);
  w.string(reason);
  peer->send(std::move(w));
}

void StoreRequests::wake(const std::string& key) {
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
    if (erased.empty()) answer(w, true);
  }
}

bool StoreRequests::wait(const StorePeerPtr& peer, uint32_t id, Reader& r) {
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
    refuse(peer, id, Status::kLimit,
           fmt::format("{} requests of this rank wait already", peer->pending));
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

void StoreRequests::forget(const std::string& key, const WaiterPtr& waiter) {
  const auto [begin, end] = waiters_.equal_range(key);
  for (auto it = begin; it != end;) it = it->second == waiter ? waiters_.erase(it) : ++it;
}

std::vector<std::string> StoreRequests::missing_of(const Waiter& waiter) const {
  std::vector<std::string> missing;
  for (const std::string& key : waiter.keys) {
    if (table_.find(key) == nullptr) missing.push_back(key);
  }
  std::sort(missing.begin(), missing.end());  // a key that is named twice is waited for once
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

void StoreRequests::answer(const WaiterPtr& waiter, bool timed) {
  waiter->done = true;
  if (timed) waiter->timer.cancel();
  const auto missing = missing_of(*waiter);
  Writer w = reply(waiter->id, missing.empty() ? Status::kOk : Status::kMissing);
  if (missing.empty()) {
    for (const std::string& key : waiter->keys) w.string(*table_.find(key));
  } else {
    w.u32(static_cast<uint32_t>(missing.size()));
    for (const std::string& key : missing) w.string(key);
  }
  waiter->peer->send(std::move(w));
}

bool StoreRequests::add(const StorePeerPtr& peer, uint32_t id, Reader& r) {
  const std::string key(r.string());
  const int64_t delta = r.i64();
  if (!r.done()) return false;
  const auto sum = table_.sum(key, delta);
  if (!sum) {
    refuse(peer, id, Status::kRefused, fmt::format("'{}' holds no counter", printable(key)));
    return true;
  }
  if (!put(peer, id, key, std::to_string(*sum))) return true;
  Writer w = reply(id, Status::kOk);
  w.i64(*sum);
  peer->send(std::move(w));
  return true;
}

bool StoreRequests::compare_set(const StorePeerPtr& peer, uint32_t id, Reader& r) {
  const std::string key(r.string());
  const bool has_expected = r.u8() != 0;
  const std::string_view expected = r.string(), value = r.string();
  if (!r.done()) return false;
  const std::string* now = table_.find(key);
  const bool equal = now == nullptr ? !has_expected : has_expected && *now == expected;
  if (equal && !put(peer, id, key, value)) return true;
  now = table_.find(key);
  Writer w = reply(id, Status::kOk);
  w.string(now == nullptr ? std::string_view() : std::string_view(*now));
  peer->send(std::move(w));
  return true;
}

bool StoreRequests::scan(const StorePeerPtr& peer, uint32_t id, Reader& r) {
  const std::string prefix(r.string());
  if (!r.done()) return false;
  Writer w = reply(id, Status::kOk);
  table_.scan(prefix, [&](const std::string& key, const std::string& value) {
    w.string(key);
    w.string(value);
  });
  peer->send(std::move(w));
  return true;
}

}  // namespace heddle
