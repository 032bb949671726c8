// What members may ask a StoreServer for. Used by the store's thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "framework/comm/store_peer.h"
#include "framework/comm/store_table.h"

namespace heddle {

class StoreRequests {
 public:
  StoreRequests(const StoreLimits& limits, std::function<std::vector<MemberState>()> members)
      : limits_(limits), members_(std::move(members)), table_(limits.store_bytes) {}

  // Answers a request, at once or when the keys that it waits for are there. False: it is
  // malformed.
  bool handle(const StorePeerPtr& peer, std::string_view body);

 private:
  struct Waiter;  // a request that waits for keys
  using WaiterPtr = std::shared_ptr<Waiter>;

  // Stores and wakes those who wait. False: refused for its size, and answered.
  bool put(const StorePeerPtr& peer, uint32_t id, const std::string& key, std::string_view value);
  void refuse(const StorePeerPtr& peer, uint32_t id, store_wire::Status status,
              const std::string& reason);
  void wake(const std::string& key);
  bool wait(const StorePeerPtr& peer, uint32_t id, store_wire::Reader& r);
  void forget(const std::string& key, const WaiterPtr& waiter);
  std::vector<std::string> missing_of(const Waiter& waiter) const;
  // timed: its timer runs.
  void answer(const WaiterPtr& waiter, bool timed);
  bool add(const StorePeerPtr& peer, uint32_t id, store_wire::Reader& r);
  bool compare_set(const StorePeerPtr& peer, uint32_t id, store_wire::Reader& r);
  bool scan(const StorePeerPtr& peer, uint32_t id, store_wire::Reader& r);

  const StoreLimits limits_;
  const std::function<std::vector<MemberState>()> members_;
  StoreTable table_;
  std::unordered_multimap<std::string, WaiterPtr> waiters_;
};

}  // namespace heddle
