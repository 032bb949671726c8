// What a rank computes on and how ranks are wired, as numbers: the inputs of the cost model. The
// table's figures carry their sources; every one can be replaced.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

// A message of b bytes takes latency_s + b / bytes_per_s.
struct Link {
  double bytes_per_s = 0;
  double latency_s = 0;
};

struct DeviceSpec {
  std::string name;
  std::string source;
  // The ranks of a host share its processors and memory: the figures below are the host's, and
  // `processors` threads reach peak_flops. Otherwise every rank has a device of its own.
  bool shared_host = false;
  int64_t processors = 1;
  int64_t compute_bytes = 4;   // of an element of the weights that products read
  int64_t exchange_bytes = 4;  // of a gradient or parameter on the wire
  double peak_flops = 0;       // FLOP/s
  double model_share = 0;      // of the peak that forward and backward reach as a whole
  // What a rank keeps of its threads' speed in forward and backward at each doubling of them.
  double thread_share = 1;
  double optimizer_share = 0;  // of the peak that Muon's products reach
  double memory_bytes = 0;
  double reserved_bytes = 0;      // of them, for what is there before the model
  double memory_bytes_per_s = 0;  // what AdamW is bound by
  // Rings (NCCL): neighbours pass pieces on, so that a host sends each piece once. Otherwise every
  // rank sends every other rank its piece.
  bool ring = false;
  double overlap = 0;  // share of a transfer that runs beside computation
  Link local;          // what a rank sends inside its host
  Link remote;         // what a host sends to other hosts, all its ranks together
};

// cpu stands for this machine: its peak is measured here (at most 150 ms), its memory asked for.
// Throws heddle::Error (usage) listing the names when there is no such device.
DeviceSpec find_device(const std::string& name);

// The names that find_device() knows.
std::vector<std::string> device_names();

// `assignment` is key=value, the key one of device_value_names(). Throws heddle::Error (usage).
void set_device_value(DeviceSpec& device, const std::string& assignment);
std::vector<std::string> device_value_names();

}  // namespace heddle
