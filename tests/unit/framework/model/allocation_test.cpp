// Steady steps allocate nothing: operator new is counted in this binary.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "framework/model/gpt.h"
#include "tests/unit/framework/model/tiny_model.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* counted(size_t bytes, size_t align) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  const size_t rounded = (bytes + align - 1) / align * align;
  void* p = align <= alignof(std::max_align_t) ? std::malloc(bytes == 0 ? 1 : bytes)
                                               : std::aligned_alloc(align, rounded);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(size_t n) {
  return counted(n, alignof(std::max_align_t));
}
void* operator new[](size_t n) {
  return counted(n, alignof(std::max_align_t));
}
void* operator new(size_t n, std::align_val_t a) {
  return counted(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, std::align_val_t a) {
  return counted(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace heddle {
namespace {

using heddle::testing::random_tokens;
using heddle::testing::TestModel;

TEST(Allocation, SteadyStepsAllocateNothing) {
  const ModelSpec spec = resolve_model(heddle::testing::tiny_config(), 0);
  TestModel model(spec, 4, spec.sequence_len, true);
  heddle::testing::load_random(model);
  const auto tokens = random_tokens(4 * spec.sequence_len, spec.vocab_size);
  std::vector<float> losses(tokens.size());
  const auto step = [&] {
    model.gpt.zero_grads();
    model.gpt.forward_backward(tokens.data(), tokens.data(), 4);
    model.gpt.forward_backward(tokens.data(), tokens.data(), 2);
    model.gpt.evaluate(tokens.data(), tokens.data(), 4, losses.data());
  };
  step();
  step();
  counting = true;
  step();
  step();
  counting = false;
  EXPECT_EQ(allocations.load(), 0);
}

}  // namespace
}  // namespace heddle
