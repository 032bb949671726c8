// Time and bytes of the collectives, from latency and bandwidth of two kinds of links.
#pragma once

#include <cstdint>

#include "framework/report/device_spec.h"

namespace heddle {

struct Topology {
  int64_t hosts = 1;
  int64_t ranks_per_host = 1;
  int64_t ranks() const { return hosts * ranks_per_host; }
};

// What a rank hands to its peers in one reduce-scatter, or one all-gather, of `bytes`: with W
// ranks (W-1)/W of them.
double sent_bytes(const Topology& topology, double bytes);

// Seconds of one reduce-scatter, or one all-gather, of `bytes`. With H hosts of M ranks, W = H M:
//   ring     inside a host a rank passes (W-1)/W bytes on; over all rings a host sends the same to
//            its neighbour; W-1 hops, of which H in W are between hosts
//   direct   a rank sends (M-1)/W bytes inside its host; a host sends M (W-M)/W; W-1 messages
// The links work at the same time, so the slower one decides; latencies are added.
double exchange_seconds(const DeviceSpec& device, const Topology& topology, double bytes);

}  // namespace heddle
