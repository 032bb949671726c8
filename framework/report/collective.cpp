#include "framework/report/collective.h"

#include <algorithm>

namespace heddle {

double exchange_seconds(const DeviceSpec& device, const Topology& topology, double bytes,
                        double largest) {
  const auto hosts = static_cast<double>(topology.hosts);
  const auto m = static_cast<double>(topology.ranks_per_host);
  const double w = hosts * m;
  if (w <= 1) return 0;
  largest = std::max(largest, bytes / w);
  const double passed = (w - 1) / w * bytes;
  const double inside = device.ring ? passed : (m - 1) * largest;
  const double between = device.ring ? passed : (w - m) * std::max(m / w * bytes, largest);
  double seconds = m > 1 ? inside / device.local.bytes_per_s : 0;
  if (hosts > 1) seconds = std::max(seconds, between / device.remote.bytes_per_s);

  const double remote_hops = hosts > 1 ? (device.ring ? hosts * (w - 1) / w : w - m) : 0;
  const double local_hops = (w - 1) - remote_hops;
  return seconds + remote_hops * device.remote.latency_s + local_hops * device.local.latency_s;
}

}  // namespace heddle
