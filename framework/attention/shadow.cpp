#include "framework/attention/shadow.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace heddle {
namespace {

constexpr unsigned char kPoison = 0xff;
constexpr uint32_t kPoisonBits = 0xffffffff;

const unsigned char* first_other(const unsigned char* begin, const unsigned char* end) {
  return std::find_if(begin, end, [](unsigned char byte) { return byte != kPoison; });
}

// Elements from the first to behind the last one of a tensor.
int64_t extent(int64_t batch, int64_t tokens, int64_t heads, int64_t dim, const heddle_strides& s) {
  if (batch == 0 || tokens == 0 || heads == 0) return 0;
  return (batch - 1) * s.batch + (tokens - 1) * s.token + (heads - 1) * s.head + dim;
}

bool acceptable(const std::string& name, float x) {
  return std::isfinite(x) || (name == "lse" && x == -std::numeric_limits<float>::infinity());
}

}  // namespace

GuardedBlock::GuardedBlock(size_t bytes, const std::string& what)
    : buffer_(bytes + 3 * kGuard, what), bytes_(bytes) {
  const auto address = reinterpret_cast<uintptr_t>(buffer_.data());
  offset_ = (kGuard - address % kGuard) % kGuard;
  poison();
}

void GuardedBlock::poison() {
  if (buffer_.data() != nullptr) std::memset(base(), kPoison, bytes_ + 2 * kGuard);
}

std::string GuardedBlock::guard_damage() const {
  if (buffer_.data() == nullptr) return {};
  const unsigned char *begin = base(), *inside = begin + kGuard, *behind = inside + bytes_;
  if (const auto* p = first_other(behind, behind + kGuard); p != behind + kGuard) {
    return fmt::format("byte {} behind its end", p - behind);
  }
  if (const auto* p = first_other(begin, inside); p != inside) {
    return fmt::format("{} bytes before its start", inside - p);
  }
  return {};
}

size_t GuardedBlock::first_touched() const {
  if (buffer_.data() == nullptr) return 0;
  const auto* inside = static_cast<const unsigned char*>(data());
  return static_cast<size_t>(first_other(inside, inside + bytes_) - inside);
}

ShadowTensor::ShadowTensor(std::string name, int64_t batch, int64_t tokens, int64_t heads,
                           int64_t dim, const heddle_strides& strides)
    : name_(std::move(name)),
      batch_(batch),
      tokens_(tokens),
      heads_(heads),
      dim_(dim),
      strides_(strides),
      block_(sizeof(float) * static_cast<size_t>(extent(batch, tokens, heads, dim, strides)),
             "the shadow of " + name_) {}

std::string ShadowTensor::first_bad() const {
  return first_not_finite(name_, data(), batch_, tokens_, heads_, dim_, strides_);
}

void ShadowTensor::deliver(float* to) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(dim_);
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t h = 0; h < heads_; ++h) {
        const int64_t at = b * strides_.batch + t * strides_.token + h * strides_.head;
        std::memcpy(to + at, data() + at, bytes);
        std::memset(data() + at, kPoison, bytes);
      }
    }
  }
}

std::string ShadowTensor::damage() const {
  if (const std::string guard = block_.guard_damage(); !guard.empty()) {
    return fmt::format("{} is written at {}", name_, guard);
  }
  const size_t byte = block_.first_touched();
  if (byte == block_.bytes()) return {};
  return fmt::format("{} is written outside its rows, at element {} from its start", name_,
                     byte / sizeof(float));
}

std::string first_not_finite(const std::string& name, const float* data, int64_t batch,
                             int64_t tokens, int64_t heads, int64_t dim,
                             const heddle_strides& strides, const int32_t* tokens_of_row) {
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = tokens_of_row == nullptr ? tokens : tokens_of_row[b];
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const float* row = data + b * strides.batch + t * strides.token + h * strides.head;
        for (int64_t d = 0; d < dim; ++d) {
          if (acceptable(name, row[d])) continue;
          const std::string at =
              fmt::format("{} (b {}, token {}, head {}, dim {})", name, b, t, h, d);
          return std::bit_cast<uint32_t>(row[d]) == kPoisonBits
                     ? at + " was not written"
                     : fmt::format("{} is {}", at, row[d]);
        }
      }
    }
  }
  return {};
}

}  // namespace heddle
