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

// Seconds of one reduce-scatter, or one all-gather, of `bytes`. With H hosts of M ranks, W = H M:
//   ring     inside a host a rank passes (W-1)/W bytes on; over all rings a host sends the same to
//            its neighbour, whoever owns the pieces; W-1 hops, of which H in W are between hosts
//   direct   every rank exchanges pieces with every other: the owner of the `largest` piece (at
//            least bytes / W) sends or receives it M-1 times inside its host; a host sends M
//            (W-M)/W of the bytes, or its largest piece W-M times; W-1 messages
// The links work at the same time, so the slower one decides; latencies are added.
double exchange_seconds(const DeviceSpec& device, const Topology& topology, double bytes,
                        double largest = 0);

}  // namespace heddle
