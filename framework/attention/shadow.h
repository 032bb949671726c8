// Memory that a backend writes under observation: poison everywhere, and checks that what it was
// not to write still is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/core/buffer.h"
#include "plugins/abi/heddle_attention.h"

namespace heddle {

// A block between two guards. Everything is 0xFF bytes, which read as NaN.
class GuardedBlock {
 public:
  GuardedBlock() = default;
  GuardedBlock(size_t bytes, const std::string& what);

  void* data() const { return base() + kGuard; }
  size_t bytes() const { return bytes_; }
  void poison();
  // Empty, or where a byte outside [0, bytes) was written: "4 bytes behind its end".
  std::string guard_damage() const;
  // Offset of the first byte inside that is not poison; bytes() when there is none.
  size_t first_touched() const;

  static constexpr size_t kGuard = 4096;  // also the alignment of data()

 private:
  unsigned char* base() const { return static_cast<unsigned char*>(buffer_.data()) + offset_; }

  HostBuffer buffer_;
  size_t offset_ = 0, bytes_ = 0;
};

// A (batch, token, head, dim) tensor of fp32 in a guarded block, or lse (batch, head, token) as
// token stride 1 and dim 1.
class ShadowTensor {
 public:
  ShadowTensor(std::string name, int64_t batch, int64_t tokens, int64_t heads, int64_t dim,
               const heddle_strides& strides);

  const std::string& name() const { return name_; }
  float* data() const { return static_cast<float*>(block_.data()); }

  // Empty, or the first element that is not finite: "out (b 0, token 3, head 1, dim 0) is NaN", or
  // "was not written". lse may be -inf.
  std::string first_bad() const;
  // Copies the rows to the caller's tensor and poisons them here.
  void deliver(float* to);
  // Empty, or what outside the rows is no longer poison. Asked after deliver(): then everything has
  // to be.
  std::string damage() const;

 private:
  std::string name_;
  int64_t batch_, tokens_, heads_, dim_;
  heddle_strides strides_;
  GuardedBlock block_;
};

// The first element of rows that is not finite, as ShadowTensor says it; empty when all are.
// tokens_of_row[b] limits the tokens of a batch row when given.
std::string first_not_finite(const std::string& name, const float* data, int64_t batch,
                             int64_t tokens, int64_t heads, int64_t dim,
                             const heddle_strides& strides, const int32_t* tokens_of_row = nullptr);

}  // namespace heddle
