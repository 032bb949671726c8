#include "framework/comm/store_table.h"

#include <charconv>

namespace heddle {

const std::string* StoreTable::find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

StoreTable::Put StoreTable::put(const std::string& key, std::string_view value) {
  const auto it = values_.find(key);
  const auto size = [&](size_t value_bytes) {
    return static_cast<int64_t>(key.size() + value_bytes);
  };
  const int64_t before = it == values_.end() ? 0 : size(it->second.size());
  const int64_t after = bytes_ - before + size(value.size());
  if (after > max_bytes_) return Put::kFull;
  bytes_ = after;
  if (it != values_.end()) {
    it->second = value;
    return Put::kReplaced;
  }
  values_.emplace(key, value);
  return Put::kNew;
}

void StoreTable::erase(const std::string& key) {
  const auto it = values_.find(key);
  if (it == values_.end()) return;
  bytes_ -= static_cast<int64_t>(it->first.size() + it->second.size());
  values_.erase(it);
}

std::optional<int64_t> StoreTable::sum(const std::string& key, int64_t delta) const {
  int64_t value = 0;
  if (const std::string* text = find(key)) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) return {};
  }
  return static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(delta));
}

}  // namespace heddle
