// After a warm-up, a pass over every op calls operator new nowhere, oneDNN included.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "framework/core/parallel_for.h"
#include "framework/device/device.h"
#include "tests/unit/framework/device/every_op.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* counted(size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) {
  return counted(bytes);
}
void* operator new[](size_t bytes) {
  return counted(bytes);
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

namespace heddle::testing {
namespace {

TEST(Allocation, NoneInASteadyPass) {
  const auto device = make_cpu_device();
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    EveryOp pass;
    pass.run(device->ops());
    pass.run(device->ops());
    allocations = 0;
    counting = true;
    pass.run(device->ops());
    counting = false;
    EXPECT_EQ(allocations, 0) << threads << " threads";
  }
}

}  // namespace
}  // namespace heddle::testing
