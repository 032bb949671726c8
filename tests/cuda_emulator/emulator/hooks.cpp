// Where plain loads and stores of kernel code arrive: GCC's -fsanitize=thread calls these before
// each of them. The real thread sanitizer is not linked.
#include "internal.h"

namespace {

using heddle::emulator::Access;
using heddle::emulator::current;
using heddle::emulator::machine;
using heddle::emulator::Place;

inline void touch(const void* address, unsigned bytes, Access access, const void* code) {
  if (!current) return;  // host code of the same source
  machine().access(address, bytes, access, Place(code));
}

// Accesses whose alignment the compiler does not know, and copies of structs: as the bytes they are.
void touch_range(const void* address, size_t bytes, Access access, const void* code) {
  if (!current) return;
  const auto* p = static_cast<const char*>(address);
  for (size_t n = 0; n < bytes; ++n) machine().access(p + n, 1, access, Place(code));
}

}  // namespace

#define HEDDLE_HOOK(bytes)                                                            \
  void __tsan_read##bytes(void* p) {                                                  \
    touch(p, bytes, Access::kRead, __builtin_return_address(0));                      \
  }                                                                                   \
  void __tsan_write##bytes(void* p) {                                                 \
    touch(p, bytes, Access::kWrite, __builtin_return_address(0));                     \
  }                                                                                   \
  void __tsan_unaligned_read##bytes(void* p) {                                        \
    touch_range(p, bytes, Access::kRead, __builtin_return_address(0));                \
  }                                                                                   \
  void __tsan_unaligned_write##bytes(void* p) {                                       \
    touch_range(p, bytes, Access::kWrite, __builtin_return_address(0));               \
  }

extern "C" {
#pragma GCC visibility push(default)
HEDDLE_HOOK(1)
HEDDLE_HOOK(2)
HEDDLE_HOOK(4)
HEDDLE_HOOK(8)
HEDDLE_HOOK(16)
void __tsan_read_range(void* p, unsigned long bytes) {
  touch_range(p, bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long bytes) {
  touch_range(p, bytes, Access::kWrite, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#pragma GCC visibility pop
}
