#include "plugins/conformance/interpose.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace heddle::conformance {
namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0}, threads{0};
// The first allocation: function, bytes, caller.
std::atomic<const char*> first_function{nullptr};
std::atomic<size_t> first_bytes{0};
std::atomic<const void*> first_caller{nullptr};

void note_allocation(const char* function, size_t bytes, const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  if (allocations.fetch_add(1) > 0) return;
  first_function = function;
  first_bytes = bytes;
  first_caller = caller;
}

struct RealFunctions {
  decltype(&::malloc) malloc_f;
  decltype(&::calloc) calloc_f;
  decltype(&::realloc) realloc_f;
  decltype(&::posix_memalign) posix_memalign_f;
  decltype(&::aligned_alloc) aligned_alloc_f;
  decltype(&::mmap) mmap_f;
  decltype(&::pthread_create) pthread_create_f;
};
RealFunctions real;

void* counted_malloc(size_t n) {
  note_allocation("malloc", n, __builtin_return_address(0));
  return real.malloc_f(n);
}
void* counted_calloc(size_t count, size_t n) {
  note_allocation("calloc", count * n, __builtin_return_address(0));
  return real.calloc_f(count, n);
}
void* counted_realloc(void* p, size_t n) {
  note_allocation("realloc", n, __builtin_return_address(0));
  return real.realloc_f(p, n);
}
int counted_posix_memalign(void** p, size_t align, size_t n) {
  note_allocation("posix_memalign", n, __builtin_return_address(0));
  return real.posix_memalign_f(p, align, n);
}
void* counted_aligned_alloc(size_t align, size_t n) {
  note_allocation("aligned_alloc", n, __builtin_return_address(0));
  return real.aligned_alloc_f(align, n);
}
void* counted_mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
  note_allocation("mmap", n, __builtin_return_address(0));
  return real.mmap_f(at, n, protection, flags, fd, offset);
}
int counted_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                           void* (*body)(void*), void* arg) {
  if (counting.load(std::memory_order_relaxed)) threads.fetch_add(1);
  return real.pthread_create_f(thread, attributes, body, arg);
}

struct Replacement {
  std::string_view name;
  void* function;
};
const Replacement kReplacements[] = {
    {"malloc", reinterpret_cast<void*>(counted_malloc)},
    {"calloc", reinterpret_cast<void*>(counted_calloc)},
    {"realloc", reinterpret_cast<void*>(counted_realloc)},
    {"posix_memalign", reinterpret_cast<void*>(counted_posix_memalign)},
    {"aligned_alloc", reinterpret_cast<void*>(counted_aligned_alloc)},
    {"memalign", reinterpret_cast<void*>(counted_aligned_alloc)},
    {"mmap", reinterpret_cast<void*>(counted_mmap)},
    {"mmap64", reinterpret_cast<void*>(counted_mmap)},
    {"pthread_create", reinterpret_cast<void*>(counted_pthread_create)},
};

template <class F>
void find_real(F& function, const char* name) {
  function = reinterpret_cast<F>(::dlsym(RTLD_DEFAULT, name));
}

void find_real_functions() {
  find_real(real.malloc_f, "malloc");
  find_real(real.calloc_f, "calloc");
  find_real(real.realloc_f, "realloc");
  find_real(real.posix_memalign_f, "posix_memalign");
  find_real(real.aligned_alloc_f, "aligned_alloc");
  find_real(real.mmap_f, "mmap");
  find_real(real.pthread_create_f, "pthread_create");
}

#if defined(__x86_64__)
constexpr bool kImplemented = true;
bool is_function_slot(uint64_t type) {
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
}
#elif defined(__aarch64__)
constexpr bool kImplemented = true;
bool is_function_slot(uint64_t type) {
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
}
#else
constexpr bool kImplemented = false;
bool is_function_slot(uint64_t) {
  return false;
}
#endif

// The dynamic section of an object, as far as it is needed. The loader has made the addresses of
// glibc's tables absolute.
struct DynamicTables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * relocations[2] = {nullptr, nullptr};
  size_t bytes[2] = {0, 0};
};

DynamicTables read_dynamic(const dl_phdr_info& object, const ElfW(Dyn) * entry) {
  DynamicTables t;
  const auto address = [&](ElfW(Addr) a) {
    return a < object.dlpi_addr ? object.dlpi_addr + a : a;
  };
  for (; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) at = address(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) t.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_STRTAB) t.strings = reinterpret_cast<const char*>(at);
    if (entry->d_tag == DT_JMPREL) t.relocations[0] = reinterpret_cast<const ElfW(Rela)*>(at);
    if (entry->d_tag == DT_PLTRELSZ) t.bytes[0] = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) t.relocations[1] = reinterpret_cast<const ElfW(Rela)*>(at);
    if (entry->d_tag == DT_RELASZ) t.bytes[1] = entry->d_un.d_val;
  }
  return t;
}

void replace_slot(void** slot, void* function) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  void* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~(page - 1));
  // The slot may be read-only by RELRO; it stays writable, this process is a check's.
  if (::mprotect(start, page, PROT_READ | PROT_WRITE) == 0) *slot = function;
}

void redirect(const dl_phdr_info& object, const DynamicTables& t) {
  if (t.symbols == nullptr || t.strings == nullptr) return;
  for (int table = 0; table < 2; ++table) {
    const size_t count = t.relocations[table] ? t.bytes[table] / sizeof(ElfW(Rela)) : 0;
    for (size_t i = 0; i < count; ++i) {
      const ElfW(Rela)& r = t.relocations[table][i];
      if (!is_function_slot(ELF64_R_TYPE(r.r_info))) continue;
      const std::string_view name = t.strings + t.symbols[ELF64_R_SYM(r.r_info)].st_name;
      for (const Replacement& replacement : kReplacements) {
        if (name != replacement.name) continue;
        replace_slot(reinterpret_cast<void**>(object.dlpi_addr + r.r_offset), replacement.function);
      }
    }
  }
}

int redirect_object(dl_phdr_info* object, size_t, void*) {
  const std::string_view path = object->dlpi_name;
  for (const char* excluded : {"/libc.so", "/ld-linux", "linux-vdso", "/libasan", "/libtsan"}) {
    if (path.find(excluded) != std::string_view::npos) return 0;
  }
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    if (header.p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + header.p_vaddr);
    redirect(*object, read_dynamic(*object, entry));
  }
  return 0;
}

}  // namespace

bool interpose() {
  if (!kImplemented) return false;
  find_real_functions();
  ::dl_iterate_phdr(redirect_object, nullptr);
  return true;
}

void begin_counting() {
  allocations = 0;
  threads = 0;
  counting = true;
}

Counts end_counting() {
  counting = false;
  Counts counts;
  counts.allocations = allocations;
  counts.threads = threads;
  if (counts.allocations == 0) return counts;
  Dl_info info{};
  counts.first_allocation =
      std::string(first_function.load()) + "(" + std::to_string(first_bytes.load()) + " bytes)";
  if (::dladdr(first_caller.load(), &info) != 0 && info.dli_fname != nullptr) {
    const char* slash = std::strrchr(info.dli_fname, '/');
    counts.first_allocation += std::string(" from ") + (slash ? slash + 1 : info.dli_fname);
  }
  return counts;
}

}  // namespace heddle::conformance
