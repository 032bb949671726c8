// Counting what a plugin does through the C library: memory from the allocator or the kernel, and
// threads.
//
// glibc 2.34 removed the malloc hooks, and replacing malloc in the heddle binary would change every
// run for the sake of one check. So the check's own process redirects the entries for a handful of
// functions (malloc, mmap, pthread_create, ...) in the global offset tables of all objects it has
// loaded, the plugin and what it links to included; the replacements count while a call runs and
// pass on to the real functions. Calls inside libc itself and the loader's own memory (the first
// use of a thread-local variable) do not go through these tables and are not counted.
#pragma once

#include <cstdint>
#include <string>

namespace heddle::conformance {

struct Counts {
  int64_t allocations = 0;
  int64_t threads = 0;
  std::string first_allocation;  // "malloc(4096) from libfoo.so"
};

// Redirects the tables of all objects loaded so far. False where this is not implemented.
bool interpose();

// Counts between begin and end, on all threads. The code between must be the plugin's and Host's.
void begin_counting();
Counts end_counting();

}  // namespace heddle::conformance
