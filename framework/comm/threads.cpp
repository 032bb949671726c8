#include "framework/comm/threads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>

#include "framework/core/parallel_for.h"

namespace heddle {
namespace {

// Same text on all processes of a running machine and on no others, containers included.
std::string host_key() {
  std::string key;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (std::getline(file, key) && !key.empty()) return key;
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<int> parse_list(std::string_view text) {
  std::vector<int> values;
  const char* at = text.data();
  const char* end = at + text.size();
  for (int value = 0; at < end;) {
    const auto parsed = std::from_chars(at, end, value);
    if (parsed.ec != std::errc()) break;
    values.push_back(value);
    at = parsed.ptr + 1;
  }
  return values;
}

}  // namespace

int fair_share(std::span<const int> own, const std::vector<std::vector<int>>& masks) {
  // Ranks on a processor -> our processors with that many; exact in whole numbers per group.
  std::map<int, int> groups;
  for (const int processor : own) {
    int sharers = 0;
    for (const auto& mask : masks) sharers += std::count(mask.begin(), mask.end(), processor) > 0;
    ++groups[std::max(sharers, 1)];
  }
  double share = 0;
  for (const auto& [sharers, processors] : groups)
    share += static_cast<double>(processors) / sharers;
  return std::max(1, static_cast<int>(share + 1e-9));
}

ThreadBudget default_threads(Communicator& comm) {
  const std::vector<int> own = processor_affinity();
  const std::string host = host_key();
  const auto texts = comm.all_gather_strings(fmt::format("{}|{}", host, fmt::join(own, ",")));

  std::vector<std::vector<int>> masks;
  for (const std::string& text : texts) {
    const size_t bar = text.rfind('|');
    if (text.compare(0, bar, host) == 0) masks.push_back(parse_list(text.substr(bar + 1)));
  }
  ThreadBudget budget;
  budget.processors = static_cast<int>(own.size());
  budget.threads = fair_share(own, masks);

  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (own.size() == 1 && online / comm.local_size() > 1) {
    budget.warning = fmt::format(
        "Rank {} is bound to 1 of {} processors; with mpirun add --bind-to none (or --map-by "
        "slot:PE=n)",
        comm.rank(), online);
  }
  return budget;
}

}  // namespace heddle
