#include "framework/attention/services.h"

#include <algorithm>

#include "framework/attention/names.h"
#include "framework/core/log.h"
#include "framework/core/parallel_for.h"
#include "framework/core/version.h"

namespace heddle {
namespace {

// Pieces that one worker gets on average at most: keeps a grain of 1 over a long range cheap.
constexpr int64_t kPiecesPerWorker = 64;

void log_line(void* user, uint32_t level, const char* utf8) {
  const std::string line = "plugin " + *static_cast<const std::string*>(user) + ": " +
                           clean_text(utf8 != nullptr ? utf8 : "", 2000);
  switch (level) {
    case 0:
      return log::debug("{}", line);
    case 1:
      return log::info("{}", line);
    case 2:
      return log::warn("{}", line);
    default:
      return log::error("{}", line);
  }
}

uint32_t num_workers(void*) {
  return static_cast<uint32_t>(num_threads());
}

void run_parallel(void*, int64_t n, int64_t grain, heddle_parallel_body body, void* arg) {
  if (n <= 0) return;
  const int64_t most = kPiecesPerWorker * num_threads();
  const int64_t pieces = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, most);
  parallel_tasks(pieces, [=](int64_t piece, int worker) {
    body(arg, n * piece / pieces, n * (piece + 1) / pieces, static_cast<uint32_t>(worker));
  });
}

}  // namespace

heddle_host make_host_services(const std::string* label) {
  heddle_host host{};
  host.struct_size = sizeof host;
  host.abi_minor = HEDDLE_ATTENTION_ABI_MINOR;
  host.name = "heddle";
  host.version = kVersion;
  host.user = const_cast<std::string*>(label);
  host.log = log_line;
  host.num_workers = num_workers;
  host.parallel_for = run_parallel;
  return host;
}

}  // namespace heddle
