// What a StoreServer keeps: keys and values up to a number of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace heddle {

class StoreTable {
 public:
  enum class Put { kNew, kReplaced, kFull };

  explicit StoreTable(int64_t max_bytes) : max_bytes_(max_bytes) {}

  const std::string* find(const std::string& key) const;
  Put put(const std::string& key, std::string_view value);
  void erase(const std::string& key);
  // The counter at `key` (0 when missing) plus delta, wrapping; nullopt: it holds no number.
  std::optional<int64_t> sum(const std::string& key, int64_t delta) const;

  // Calls visit(key, value) for the keys that begin with `prefix`.
  template <class F>
  void scan(const std::string& prefix, F visit) const {
    for (auto it = values_.lower_bound(prefix);
         it != values_.end() && it->first.starts_with(prefix); ++it) {
      visit(it->first, it->second);
    }
  }

 private:
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::map<std::string, std::string> values_;
};

}  // namespace heddle
