// Keys and values of the tokens that a model has already read, for decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/device/device.h"
#include "framework/model/rope.h"
#include "framework/model/spec.h"

namespace heddle {

// Per layer k and v of shape (B, capacity, K, D), contiguous; per row its length and the previous
// token's rms(wte), which smear reads. Rows are independent and may have different lengths.
class KvCache {
 public:
  // Throws heddle::Error (environment) when the device has not enough memory.
  KvCache(const ModelSpec& spec, Device& device, int64_t batch, int64_t capacity);

  int64_t batch() const { return batch_; }
  int64_t capacity() const { return capacity_; }
  int64_t length(int64_t row) const { return lengths_.at(static_cast<size_t>(row)); }
  size_t bytes() const {
    return planned_bytes(batch_, capacity_, n_layer_, kv_dim_) + rope_.bytes();
  }
  // Of the keys and values of a cache, without making one.
  static size_t planned_bytes(const ModelSpec& spec, int64_t batch, int64_t capacity) {
    return planned_bytes(batch, capacity, spec.n_layer, spec.kv_dim());
  }
  // Forgets everything, in all rows.
  void reset();

  // ---- for Gpt::decode
  // Throws heddle::Error (config) when one of the rows [first_row, first_row + batch) does not
  // exist or has no room for q_len more tokens.
  void require(int64_t first_row, int64_t batch, int64_t q_len) const;
  // The rows are about to read q_len tokens: pos0 and kv_len become true of them.
  void begin(int64_t first_row, int64_t batch, int64_t q_len);
  // They have: lengths grow by q_len.
  void commit(int64_t first_row, int64_t batch, int64_t q_len);

  float* k(int64_t layer, int64_t row) const { return slot(layer, 0, row); }
  float* v(int64_t layer, int64_t row) const { return slot(layer, 1, row); }
  float* prev(int64_t row) const { return prev_ + row * n_embd_; }  // (C), zeros at length 0
  // Of the rows of the last begin(), from its first_row on: lengths before and after the tokens.
  const int32_t* pos0() const { return pos0_; }
  const int32_t* kv_len() const { return kv_len_; }
  const RopeTable& rope() const { return rope_; }

 private:
  static size_t planned_bytes(int64_t batch, int64_t capacity, int64_t n_layer, int64_t kv_dim) {
    return static_cast<size_t>(2 * n_layer * batch * capacity * kv_dim) * sizeof(float);
  }
  float* slot(int64_t layer, int64_t which, int64_t row) const {
    return data_ + (((2 * layer + which) * batch_) + row) * capacity_ * kv_dim_;
  }

  Device& device_;
  int64_t n_layer_, n_embd_, kv_dim_, batch_, capacity_;
  RopeTable rope_;
  DeviceBuffer memory_;
  float* data_ = nullptr;
  float* prev_ = nullptr;
  int32_t* pos0_ = nullptr;
  int32_t* kv_len_ = nullptr;
  std::vector<int32_t> lengths_, after_;
};

}  // namespace heddle
