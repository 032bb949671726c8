// Reports: names of functions and source lines of instructions. Slow, and only for faults.
#include <dlfcn.h>

#include <cstdio>
#include <utility>

#include "internal.h"

namespace heddle::emulator {
namespace {

// What binutils' addr2line says of an address in a loaded file: function, then file:line of it and
// of everything it was inlined into.
std::string ask_addr2line(const void* code, const char* options) {
  Dl_info info{};
  if (::dladdr(code, &info) == 0 || !info.dli_fname) return {};
  const auto offset = static_cast<const char*>(code) - static_cast<const char*>(info.dli_fbase);
  char command[1024];
  std::snprintf(command, sizeof command, "addr2line -C %s -e '%s' 0x%llx 2>/dev/null", options,
                info.dli_fname, static_cast<unsigned long long>(offset));
  std::string text;
  if (FILE* pipe = ::popen(command, "r")) {
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe)) text += buffer;
    ::pclose(pipe);
  }
  return text;
}

std::string from_root(std::string path) {
  for (const char* folder : {"/kernels/", "/plugins/", "/tests/", "/framework/"}) {
    if (const size_t at = path.find(folder); at != std::string::npos) return path.substr(at + 1);
  }
  return path;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}


}  // namespace

std::string text_of(const Place& place) {
  if (place.file) return from_root(place.file) + ":" + std::to_string(place.line);
  if (!place.code) return "its end";
  const std::string line = first_line(ask_addr2line(static_cast<const char*>(place.code) - 1, "-i"));
  return line.empty() || line[0] == '?' ? "an unknown line (no debug information)"
                                        : from_root(line.substr(0, line.find(' ')));
}

std::string function_at(const void* code) {
  Dl_info info{};
  if (::dladdr(code, &info) == 0 || !info.dli_fname) return {};
  return info.dli_sname ? info.dli_sname : info.dli_fname;
}

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kOutOfBounds: return "out of bounds";
    case FaultKind::kUseAfterFree: return "use after free";
    case FaultKind::kMisaligned: return "misaligned";
    case FaultKind::kHostMemory: return "host memory";
    case FaultKind::kUninitialised: return "uninitialised shared memory";
    case FaultKind::kRace: return "race in shared memory";
    case FaultKind::kBlockRace: return "race between blocks";
    case FaultKind::kInFlight: return "cp.async in flight";
    case FaultKind::kLostCopy: return "cp.async never waited for";
    case FaultKind::kDivergentBarrier: return "divergent barrier";
    case FaultKind::kDivergentCollective: return "divergent warp operation";
  }
  return "unknown";
}

Fault Machine::describe(FaultKind kind, std::string what, const Place& place,
                        const Thread& thread) const {
  Fault f{kind, {}, block_index_, thread.index, std::move(what), text_of(place)};
  const std::string symbol = first_line(ask_addr2line(launch_->kernel, "-f"));
  f.kernel = symbol.empty() || symbol[0] == '?' ? function_at(launch_->kernel) : symbol;
  return f;
}

std::string Fault::text() const {
  char place[160];
  std::snprintf(place, sizeof place, "block (%u, %u, %u), thread (%u, %u, %u)", block.x, block.y,
                block.z, thread.x, thread.y, thread.z);
  return std::string(name_of(kind)) + ": " + kernel + ", " + place + ": " + what + " [" + where +
         "]";
}

std::optional<Fault> take_fault() {
  return std::exchange(machine().fault, std::nullopt);
}

}  // namespace heddle::emulator
