// A translation unit of its own: where the compiler sees both the replaced operators and their uses
// it warns about a mismatch that is none.
#include "tests/unit/framework/attention/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> g_allocations{0};
}  // namespace

// A sanitizer brings its own operators, which plugins would mix with these; nothing is counted then.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
#endif

namespace heddle::test {

int64_t allocations() {
  return g_allocations;
}

}  // namespace heddle::test
