#include "framework/model/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/core/buffer.h"
#include "framework/core/error.h"

namespace heddle {

KvCache::KvCache(const ModelSpec& spec, Device& device, int64_t batch, int64_t capacity)
    : device_(device),
      n_layer_(spec.n_layer),
      n_embd_(spec.n_embd),
      kv_dim_(spec.kv_dim()),
      batch_(batch),
      capacity_(capacity),
      rope_(spec, device, capacity),
      lengths_(static_cast<size_t>(batch), 0),
      after_(static_cast<size_t>(batch), 0) {
  const auto floats = [](int64_t n) { return static_cast<size_t>(n) * sizeof(float); };
  const auto ints = [](int64_t n) { return static_cast<size_t>(n) * sizeof(int32_t); };
  Arena arena;
  const size_t data = arena.reserve("k and v", floats(2 * n_layer_ * batch * capacity * kv_dim_));
  const size_t prev = arena.reserve("previous embeddings", floats(batch * n_embd_));
  const size_t pos0 = arena.reserve("pos0", ints(batch));
  const size_t kv_len = arena.reserve("kv_len", ints(batch));
  memory_ = device.allocate(arena.bytes(), "the key/value cache");
  arena.commit(memory_.get());
  data_ = arena.f32(data);
  prev_ = arena.f32(prev);
  pos0_ = static_cast<int32_t*>(arena.data(pos0));
  kv_len_ = static_cast<int32_t*>(arena.data(kv_len));
}

void KvCache::reset() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
  device_.ops().zero(prev_, static_cast<size_t>(batch_ * n_embd_) * sizeof(float));
}

void KvCache::require(int64_t first_row, int64_t batch, int64_t q_len) const {
  if (first_row < 0 || batch < 1 || first_row + batch > batch_) {
    throw config_error(fmt::format("rows {} to {} of a key/value cache with {} rows", first_row,
                                   first_row + batch - 1, batch_),
                       "make the cache for as many rows as are decoded");
  }
  for (int64_t row = first_row; row < first_row + batch; ++row) {
    if (length(row) + q_len <= capacity_) continue;
    throw config_error(fmt::format("the key/value cache holds {} tokens; row {} has {} and {} more "
                                   "were to come",
                                   capacity_, row, length(row), q_len),
                       "ask for fewer tokens or make the cache larger");
  }
}

void KvCache::begin(int64_t first_row, int64_t batch, int64_t q_len) {
  require(first_row, batch, q_len);
  for (int64_t row = first_row; row < first_row + batch; ++row) {
    const auto b = static_cast<size_t>(row);
    after_[b] = lengths_[b] + static_cast<int32_t>(q_len);
  }
  const size_t bytes = static_cast<size_t>(batch) * sizeof(int32_t);
  device_.upload(pos0_, lengths_.data() + first_row, bytes);
  device_.upload(kv_len_, after_.data() + first_row, bytes);
}

void KvCache::commit(int64_t first_row, int64_t batch, int64_t q_len) {
  for (int64_t row = first_row; row < first_row + batch; ++row) {
    lengths_[static_cast<size_t>(row)] += static_cast<int32_t>(q_len);
  }
}

}  // namespace heddle
